"""Models: decoders described by data."""
