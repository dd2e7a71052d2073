"""Kinds of state: what users declare, and the handles that functions use."""
