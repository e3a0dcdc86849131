"""The Helm-deployed cluster service, as its clients use it."""
