"""A second process that attaches tables like a Spark worker, one command at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.object_cache import two_tiers
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import CheckpointStorage
from pystate.state.list import ListHandle
from pystate.state.operator_spec import OperatorSpec
from pystate.state.value import ValueState
from pystate.tables.attach import Attachment, TableCache
from pystate.tables.host import TableHome
from pystate.tables.options import TableOptions
from pystate.tables.range_files import cache_of
from pystate.tables.recovery import TableSpec
from pystate.types.keys import parse_key

KEY = {"k": "long"}
STATES = {"n": ValueState("long", default=0), "s": ValueState("string")}


class Worker:
    """What a task does, step by step."""

    def __init__(self, root: str | CheckpointStorage, home: TableHome, **options: Any) -> None:
        self.storage = open_storage(root) if isinstance(root, str) else root
        self.spec = TableSpec(
            storage=self.storage,
            home=home,
            operator=OperatorSpec(
                options.pop("uid", "op"),
                parse_key(KEY),
                options.pop("states", STATES),
                namespace=options.pop("namespace", None),
                timers=options.pop("timers", False),
                max_parallelism=options.pop("groups", 128),
            ),
            options=TableOptions(options.pop("table_home", "shm"), **options),
        )
        self.cache = TableCache()
        self.held: Attachment | None = None
        self.base: RangeState | None = None

    @property
    def attachment(self) -> Attachment:
        assert self.held is not None
        return self.held

    def attach(self, base: RangeState) -> tuple[str, str, int]:
        self.base = base
        self.held = self.cache.attach(self.spec, base)
        return self.held.how, self.held.reason, self.held.files

    def attach_to_read(self, base: RangeState) -> tuple[str, str, int]:
        self.base = base
        self.held = self.cache.attach_to_read(self.spec, base)
        return self.held.how, self.held.reason, self.held.files

    def add(self, counts: Mapping[int, int]) -> None:
        backend = self.attachment.backend
        keys = backend.keys(pa.array(list(counts), pa.int64()))
        backend["n"].add(keys, pa.array(list(counts.values()), pa.int64()))
        backend["s"].update_all(keys, pa.array([f"<{k}>" * 9 for k in counts]))

    def put(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Set the states of keys one by one; to a list an item is added."""
        backend = self.attachment.backend
        for key, states in rows.items():
            backend.set_current_key(key)
            for name, value in states.items():
                handle = backend[name]
                (handle.add if isinstance(handle, ListHandle) else handle.update)(value)

    def seal(self, epoch: int) -> FileRef:
        assert self.base is not None
        parent = bytes.fromhex(self.base.id)
        lineage = Lineage(uuid.uuid4().bytes, parent, epoch)
        snapshot = self.attachment.backend.seal(lineage)
        first, last = self.base.first_key_group, self.base.last_key_group
        path = state_path(self.spec.operator.uid, first, last, epoch, lineage.id.hex(), "delta")
        cache = cache_of(self.spec) if self.spec.options.on_disk else None
        storage = self.storage if cache is None else two_tiers(cache)
        with storage.create(path) as out:
            info = snapshot.write(out)
        snapshot.close()
        return FileRef.from_info(path, info)

    def release(self) -> None:
        self.attachment.release()

    def epoch(self, base: RangeState, counts: Mapping[int, int], epoch: int) -> FileRef:
        self.attach(base)
        self.add(counts)
        ref = self.seal(epoch)
        self.release()
        return ref

    def look_up(self, keys: list[int], at_a_time: int) -> None:
        backend = self.attachment.backend
        for at in range(0, len(keys), at_a_time):
            backend.prefetch(pa.array(keys[at : at + at_a_time], pa.int64()))

    def read(self) -> dict[int, int]:
        table = self.attachment.backend.to_arrow()
        found = dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
        assert table["s"].to_pylist() == [f"<{k}>" * 9 for k in found]
        return found

    def stats(self) -> Any:
        return self.attachment.backend.stats()

    def stop(self) -> None:
        if self.held is not None:
            self.held.release()
        self.cache.close()


class Peer:
    """A `Worker` in a process of its own."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def call(self, name: str, *arguments: Any) -> Any:
        """Run a method there and wait for it."""
        self.send(name, *arguments)
        return self.receive()

    def send(self, name: str, *arguments: Any) -> None:
        self._connection.send((name, arguments))

    def receive(self) -> Any:
        done, result = self._connection.recv()
        if not done:
            raise result
        return result

    def kill(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def stop(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Connection) -> None:
    worker: Worker | None = None
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            if name == "configure":
                if worker is not None:
                    worker.stop()
                root, home, options = arguments
                worker, result = Worker(root, home, **options), None
            else:
                result = getattr(worker, name)(*arguments)
            connection.send((True, result))
        except Exception as error:
            connection.send((False, error))
