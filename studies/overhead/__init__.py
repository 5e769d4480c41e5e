"""How much time does a trial take in addition to compilation and micro-steps?"""
