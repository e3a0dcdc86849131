"""A cluster service on Kubernetes, as a client sees it."""
