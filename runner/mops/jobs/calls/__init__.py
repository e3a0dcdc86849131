"""What a program calls in addition to the methods of a job. Each function does what the command of its name does."""
