"""The commands that look at a cluster service, one a file."""
