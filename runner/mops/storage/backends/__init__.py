"""Where bytes go: a local folder, this process's memory, Azure Blob."""
