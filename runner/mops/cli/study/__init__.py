"""The commands ``mops study ...``."""
