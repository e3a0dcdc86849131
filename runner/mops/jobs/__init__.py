"""What users do with jobs, from a terminal or from Python."""
