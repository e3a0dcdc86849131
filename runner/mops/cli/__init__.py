"""Runs on the user's machine: one verb a file, no logic."""
