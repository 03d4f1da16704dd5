"""The running operator: kopf's watches, the workers, the complete lists, the HTTP server."""
