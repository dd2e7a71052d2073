"""Checkpoints from outside: described, verified, repaired and cleaned, without the job's code."""
