"""The work of a worker for a job: it runs tasks in child processes."""
