"""Does a tuning that is killed at random moments end with the same trials as one that is not?"""
