"""Defines one profile for each kind of device: the rules that its compiler follows."""
