"""Draws parameter sets from a space."""
