"""The command ``mops``: one verb a file, no logic."""
