"""Says where an attempt stands: to the user, to the storage, to Prometheus."""
