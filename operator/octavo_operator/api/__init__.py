"""The InferenceService: its types, names, labels and conditions."""
