"""A table whose epochs are published one after the other, at times that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, state_path
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import LocalStorage
from pystate.state.declaration import State
from pystate.state.operator_spec import stored_ttls

GROUPS = 128


class Written:
    """An operator of one range, in files that no merge replaces."""

    def __init__(self, folder: Path, states: Mapping[str, State[Any]], **given: Any) -> None:
        self.storage = LocalStorage(folder)
        self.states = states
        self.backend = ps.KeyedStateBackend({"key": "long"}, states=states, **given)
        self.deltas: tuple[FileRef, ...] = ()

    def set_current(self, key: int, *namespace: Any) -> None:
        """Choose the key, and its namespace if there are any."""
        self.backend.set_current_key(key)
        for space in namespace:
            self.backend.set_current_namespace(space)

    def publish(
        self,
        now_ms: int,
        watermark_ms: int | None = None,
        ttls: Mapping[str, State[Any]] | None = None,
        *,
        sweeps: bool = False,
        **said: Any,
    ) -> None:
        """Publish what the open epoch has changed.

        What has expired stays, unless it `sweeps`. The manifest has the times to live of `ttls`, by
        default of the table's states.
        """
        epoch = len(self.deltas) + 1
        self.backend._swept = not sweeps
        id, parent = epoch.to_bytes(16, "big"), (epoch - 1).to_bytes(16, "big")
        path = state_path("op", 0, GROUPS - 1, epoch, id.hex(), "delta")
        lineage = Lineage(id, parent, epoch)
        with self.backend.seal(lineage) as snapshot, self.storage.create(path) as out:
            info = snapshot.write(out)
        self.deltas = (*self.deltas, FileRef.from_info(path, info))
        operator = OperatorState(
            "op",
            1,
            tuple((name, type_.ddl) for name, type_ in self.backend.key),
            tuple((name, state.stored_as()) for name, state in self.states.items()),
            (RangeState(0, 0, GROUPS - 1, id.hex(), deltas=self.deltas),),
            watermark_ms=watermark_ms,
            ttls=stored_ttls(self.states if ttls is None else ttls),
        )
        manifest = Manifest(
            epoch, epoch - 1, "e", "r", 0, "h", GROUPS, now_ms, 0, "test", (operator,), **said
        )
        self.storage.publish(manifest.path, manifest.encode())
