"""Estimates the time of a micro-step: the roofline, and rules by kind of kernel and device."""
