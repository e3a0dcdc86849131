"""Processes, memory, cgroups and folders, as the operating system has them."""
