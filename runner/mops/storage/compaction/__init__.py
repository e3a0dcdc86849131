"""Merges small parts of complete jobs into larger ones, and reads rows while that happens."""
