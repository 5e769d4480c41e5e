"""A folder for PYTHONPATH: its `sitecustomize` records the variables of a training from inside its process."""
