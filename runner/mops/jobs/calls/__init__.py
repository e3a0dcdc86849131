"""The functions that a program calls besides the methods of a job. Each does what the command of its name does."""
