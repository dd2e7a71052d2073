"""Stateful functions: what users subclass, and what they are told while they run."""
