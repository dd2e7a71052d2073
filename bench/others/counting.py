"""What the programs of this folder say of their result, so that it can be checked."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def tell(seconds: float, counts: Collection[int], package: str) -> None:
    """Print the time, how many keys and rows were counted, and the squares of the counts."""
    found = {
        "seconds": seconds,
        "keys": len(counts),
        "rows": sum(counts),
        "squares": sum(n * n for n in counts),
        "version": metadata.version(package),
    }
    print(json.dumps(found))
