"""Stored checkpoints: state files, the manifests that name them, and the storage."""
