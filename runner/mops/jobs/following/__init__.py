"""Follows a job that another process runs, through its storage."""
