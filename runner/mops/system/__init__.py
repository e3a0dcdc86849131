"""What mops asks of the operating system: processes, memory, cgroups, folders."""
