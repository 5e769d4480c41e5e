"""What does it take to compile the training of a decoder of 7 billion parameters for chips that are not here?"""
