"""The Octavo operator: turns InferenceServices into pods that serve them."""
