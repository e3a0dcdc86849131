"""The names of modules that user code imports."""
