"""Measures a fit: times, losses, and events of an epoch."""
