"""Applies a TrainConfig to Keras, in workers and in the user's own process. Imports Keras."""
