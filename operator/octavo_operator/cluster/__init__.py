"""The way to the API server: port.py says what the operator needs of it, client.py does it."""
