"""Runs jobs in worker processes: the planner's side of the connection."""
