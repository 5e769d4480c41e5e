"""How long does it take to compile a decoder with 7 billion parameters for absent chips, and how much memory?"""
