"""Runs one simulation three times, before hundreds of thousands run once."""
