"""Does every kind of source tune, and train its own number of updates?"""
