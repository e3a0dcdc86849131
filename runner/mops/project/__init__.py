"""The user's project: its root, its registry, and the bundle made of it."""
