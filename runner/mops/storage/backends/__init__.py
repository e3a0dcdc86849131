"""Where bytes go: a local folder, memory, Azure Blob."""
