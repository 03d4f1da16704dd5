"""What the server process and the engine process say to each other, and the server's end of it."""
