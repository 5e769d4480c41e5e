"""Applies configurations to Keras and runs the user's training, in workers and in the user's own process."""
