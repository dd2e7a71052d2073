"""A class whose objects are in golden files, as versions 0 (before it was `Versioned`) and 1."""

from __future__ import annotations

from typing import Any

import pystate as ps


class Visit(ps.Versioned):
    """A page that was visited."""

    state_version = 2

    def __init__(self, page: str, ms: int, tags: list[str]) -> None:
        self.page, self.ms, self.tags = page, ms, tags

    @classmethod
    def migrate(cls, state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Version 0 had the page alone, version 1 seconds, and 2 has milliseconds and tags."""
        if from_version == 0:
            return {**state, "seconds": 0}
        return {"page": state["page"], "ms": state["seconds"] * 1000, "tags": []}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Visit) and vars(self) == vars(other)
