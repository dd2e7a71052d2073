"""Tables of one process, and what they write."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pystate as ps


def keyed(
    states: Mapping[str, Any],
    *files: io.BytesIO,
    allow_unclaimed_state: bool = False,
    **options: Any,
) -> ps.KeyedStateBackend:
    """A table whose key is a long, with the content of files; the key 1 is current."""
    made = ps.KeyedStateBackend("long", states=states, **options)
    if files:
        made.restore(files, allow_unclaimed_state=allow_unclaimed_state)
    made.set_current_key(1)
    return made


def sealed(backend: ps.KeyedStateBackend) -> io.BytesIO:
    """The delta of an epoch; the key 1 is current again."""
    out = io.BytesIO()
    with backend.seal() as snapshot:
        snapshot.write(out)
    backend.set_current_key(1)
    return out
