"""The commands ``mops jobs ...``."""
