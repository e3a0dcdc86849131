"""The verbs of ``mops calibrations``."""
