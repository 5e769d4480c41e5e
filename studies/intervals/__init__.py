"""How often is a later median inside the interval that a plan states, and would other rules do better?"""
