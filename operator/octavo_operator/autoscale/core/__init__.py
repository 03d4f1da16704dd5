"""The decision: pure, so that it can be replayed, simulated and proved."""
