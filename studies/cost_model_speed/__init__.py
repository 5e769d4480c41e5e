"""How fast are the cost models, and how large a model can be traced?"""
