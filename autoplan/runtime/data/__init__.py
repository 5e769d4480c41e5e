"""Describes the data of a `fit`, and converts it to another batch size."""
