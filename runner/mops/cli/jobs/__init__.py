"""The commands ``mops jobs ...``, one a file."""
