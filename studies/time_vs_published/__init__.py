"""How far are predicted seconds of a training step from published measurements?"""
