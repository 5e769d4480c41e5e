"""Modules that replace the data of public examples; the folder is on PYTHONPATH of the processes that run them."""
