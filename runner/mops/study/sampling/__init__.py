"""Draws parameter sets from a space: Sobol, Latin hypercube, grid."""
