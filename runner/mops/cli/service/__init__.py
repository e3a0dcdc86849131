"""The commands that look at a cluster service or a machine."""
