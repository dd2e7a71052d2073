"""Output: the sink protocol, and the sinks that come with it."""
