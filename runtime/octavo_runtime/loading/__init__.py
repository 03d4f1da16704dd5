"""Reading a model directory: its description, its weights, and what it will need."""
