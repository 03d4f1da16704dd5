"""A real one-node Kubernetes for development and end-to-end tests: `python3 -m cluster --help`."""
