"""Runs one simulation three times before a study is submitted."""
