"""Small training scripts in the manner of the examples on keras.io, with synthetic data."""
