"""A job's log: the records that say what is committed, and what they mean."""
