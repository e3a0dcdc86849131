"""A local web page over a storage: lists jobs, follows them, and starts and stops their runners."""
