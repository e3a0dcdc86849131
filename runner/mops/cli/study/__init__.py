"""The commands ``mops study ...``, one a file."""
