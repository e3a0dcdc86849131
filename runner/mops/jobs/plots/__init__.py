"""Plots of a job: what a figure needs is read from the job, and matplotlib draws it."""
