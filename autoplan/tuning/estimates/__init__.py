"""Estimates configurations before trials, and corrects the estimates by trials."""
