"""`kubectl octavo`: what a person asks about an InferenceService, with that person's own rights. docs/kubectl.md."""
