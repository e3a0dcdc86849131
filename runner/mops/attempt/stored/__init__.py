"""Simulations that are stored already, by a parent or by other jobs, and need not run."""
