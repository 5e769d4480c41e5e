"""Builds the plan from the results of tuning."""
