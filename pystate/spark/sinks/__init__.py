"""Output: the sink protocol, and the sinks of pystate."""
