"""Says where an attempt stands: to the terminal, to the storage, to Prometheus."""
