"""State larger than memory, beside RocksDB with as much memory."""
