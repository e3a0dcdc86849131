"""The command ``mops jobs failures``."""
