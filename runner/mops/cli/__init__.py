"""The command ``mops``: one file for each command, without logic."""
