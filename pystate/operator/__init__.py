"""A stateful operator's calls over one task's rows, without Spark."""
