"""Decides what runs next, from what was measured. No cluster, no threads."""
