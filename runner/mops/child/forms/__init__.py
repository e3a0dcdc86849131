"""Forms of results and of replicates that belong to a library, recognized without an import of that library."""
