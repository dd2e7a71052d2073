"""What runs in Spark's tasks: an operator over its range's table, and its files."""
