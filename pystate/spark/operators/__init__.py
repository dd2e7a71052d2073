"""The operators of a pipeline: what `job.key_by` and its like return."""
