"""Stateful functions: the classes that users subclass, and the context that these get."""
