"""Compares results: of two jobs, and of two runs of one simulation."""
