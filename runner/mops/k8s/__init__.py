"""Knows Kubernetes, not studies: the runner's Job, where it stands, and the connection to the cluster."""
