"""Checkpoints at rest: files of state, manifests that name them, and where they lie."""
