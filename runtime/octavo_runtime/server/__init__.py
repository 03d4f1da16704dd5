"""The server process: HTTP, validation and text. It never imports torch, and knows the engine by its messages only."""
