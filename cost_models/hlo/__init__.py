"""Reads the text of compiled programs (HLO) into Workloads."""
