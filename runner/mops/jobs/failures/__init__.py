"""Groups the failures of a job by cause."""
