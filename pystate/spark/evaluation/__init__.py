"""One attempt at an epoch: what it evaluates, once and under a watch, and what it begins with."""
