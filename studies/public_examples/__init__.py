"""Do public Keras examples tune, unmodified but for their data, or end with a clear reason?"""
