"""A report of a job: one HTML page with figures, which needs no network and no other file."""
