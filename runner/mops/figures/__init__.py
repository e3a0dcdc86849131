"""The numbers of each figure, aggregated from a job's tables: what plots, reports and pages draw."""
