"""The interpreter, the libraries and the variables that child processes get."""
