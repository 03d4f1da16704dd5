"""Layers: weights and what is done with them."""
