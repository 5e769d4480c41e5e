"""Does a tuning that is killed at random moments end with the trials of one that is left alone, none of them twice?"""
