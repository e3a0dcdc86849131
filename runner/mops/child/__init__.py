"""What a child process imports: standard library, numpy, pyarrow, the model."""
