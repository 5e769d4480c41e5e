"""Install the synthetic data. Python imports this module at the start of every process with this PYTHONPATH."""

import synthetic_data

synthetic_data.install()
