"""How close are memory estimates to the peak memory that others published?"""
