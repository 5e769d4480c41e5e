"""Studies of autoplan: one folder a question, run from a checkout with `python -m studies.<folder>`."""
