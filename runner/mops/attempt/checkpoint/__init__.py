"""Makes finished groups durable: parts first, then one record in the log."""
