"""Live queries: what a checkpoint holds, asked from any process without touching its job."""
