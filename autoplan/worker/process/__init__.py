"""Starts the processes of jobs, and runs a job in each."""
