"""Runs simulations at the terminal of a user."""
