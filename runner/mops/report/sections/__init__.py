"""The sections of a report: each reads a part of a job and says what to show of it."""
