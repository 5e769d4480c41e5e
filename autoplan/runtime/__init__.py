"""What turns a TrainConfig into Keras settings, in a worker and in the user's own process alike. Imports Keras."""
