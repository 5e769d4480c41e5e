"""Can autoplan tune public Keras examples without changes, except for their data, or give a clear reason?"""
