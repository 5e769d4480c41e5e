"""Runs jobs: the worker's side, in processes that import Keras."""
