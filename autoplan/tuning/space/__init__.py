"""Defines the search space: legal values, legal configurations, and pruning."""
