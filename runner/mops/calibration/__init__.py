"""Fits parameters to data: rounds of jobs, whose sets an optimiser asks for and whose losses mops tells it."""
