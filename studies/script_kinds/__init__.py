"""Can autoplan tune every kind of source, and does the plan make the same number of updates?"""
