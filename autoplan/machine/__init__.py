"""Reads and controls this machine: hardware, processes, control groups, temporary folders."""
