"""A job's log: claims, commits, cancels, ends, and what they mean."""
