"""Compares kinds of hardware for one training (`autoplan compare`)."""
