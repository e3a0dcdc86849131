"""The interpreter, the libraries and the variables of child processes."""
