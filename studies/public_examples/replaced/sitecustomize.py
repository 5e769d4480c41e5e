"""Python imports this by itself at every start, in every process that has this folder on PYTHONPATH."""

import synthetic_data

synthetic_data.install()
