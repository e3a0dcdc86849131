"""The user's project: its root, its code, and the bundle that is made of it."""
