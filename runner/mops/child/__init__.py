"""What a child process imports: the standard library, numpy and pyarrow, and nothing that it does not need."""
