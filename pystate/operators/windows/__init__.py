"""Windows over keyed streams: how rows are assigned, and what is kept and emitted."""
