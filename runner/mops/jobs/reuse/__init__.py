"""Finds simulations that other jobs of a storage have run."""
