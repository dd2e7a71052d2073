"""How a function is called for the rows of a broadcast input, and how it reaches all its keys.

Thread safety: an object belongs to its task.

Invariants
----------
1. Broadcast states can be written only while a row of the broadcast input is handled.
2. No key is current meanwhile, except within `RuntimeContext.apply_to_keyed_state`, which makes
   each key of the range with the state current once. However many there are, the keys of one batch
   are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, NoCurrentKeyError, WrongTypeError
from pystate.operators.runtime.call_shapes import (
    Calls,
    Run,
    are_rows,
)
from pystate.operators.runtime.grouping import keys_at
from pystate.operators.runtime.instance_state import InstanceState
from pystate.operators.runtime.output import OUTPUT_ROWS
from pystate.operators.runtime.rows import RowFactory
from pystate.state.aggregating import AggregatingHandle
from pystate.state.key_batch import KeyBatch

#: Keys that `apply_to_keyed_state` holds at once.
_VISITED = 8_192
#: The same if values of any size have to be copied to see which keys have one.
_FEW_VISITED = 256

_NO_KEY = (
    "a row of the broadcast input belongs to none; "
    "ctx.apply_to_keyed_state(self.state, function) visits all keys that have a state"
)


class BroadcastCalls:
    """Calls a function for rows of its broadcast input; `calls` does it for keyed rows."""

    def __init__(self, run: Run, calls: Calls, states: InstanceState) -> None:
        given = run.spec.broadcast
        assert given is not None, "a function with a broadcast input"
        self._run = run
        self._calls = calls
        self._states = states
        self._factory = RowFactory(given.columns)
        self._in_batches = not calls.one_key
        self._emitted: list[Any] = []
        self._handles_row = False
        self._visits = False

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Call the function for each row; `times` are their event times."""
        run, context = self._run, self._run.context
        moments = [None] * rows.num_rows if times is None else times.to_pylist()
        try:
            for row, moment in zip(self._factory.rows(rows), moments, strict=True):
                context.timestamp = moment
                if run.row_clock is not None:
                    run.row_clock(moment)
                yield from self._handled(row)
        finally:
            context.timestamp = None
        yield from self._drained()

    def _handled(self, row: Any) -> Iterator[Any]:
        run, calls, states = self._run, self._calls, self._states
        run.backend.clear_current_key()
        pieces: list[Any] = []
        calls.remember_call("process_broadcast")
        self._handles_row, states.read_only = True, False
        try:
            result = calls.function.process_broadcast(row, run.context)
            if result is not None:
                self._collect(result, pieces)
        except NoCurrentKeyError as error:
            calls.keyless(error, _NO_KEY)
            raise
        except Exception as error:
            calls.note(error, "process_broadcast", f"row {row!r:.80}")
            raise
        finally:
            self._handles_row, states.read_only = False, True
            run.leave_namespace()
            run.backend.clear_current_key()
        yield from pieces
        if len(self._emitted) >= OUTPUT_ROWS:
            yield from self._drained()

    def _collect(self, result: Any, pieces: list[Any]) -> None:
        calls, method = self._calls, "process_broadcast"
        if not self._in_batches:
            if not are_rows(result):
                calls.refuse(
                    method,
                    result,
                    "yield rows, each of them a tuple, Row or dict, or return a list of them",
                )
            self._emitted.extend(result)
            return
        for value in calls.batches(method, result):
            pieces.extend(calls.output.from_value(value))

    def _drained(self) -> Iterator[Any]:
        if self._emitted:
            emitted, self._emitted = self._emitted, []
            yield self._calls.output.from_rows(emitted)

    # -- all keys

    def apply(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        """See `RuntimeContext.apply_to_keyed_state`."""
        run, backend = self._run, self._run.backend
        where = f"operator {run.context.uid!r}: apply_to_keyed_state"
        if not self._handles_row:
            raise InvalidArgumentError(
                f"{where} is for process_broadcast: elsewhere the key of the row or timer is "
                "current, and no other one can be reached"
            )
        if self._visits:
            raise InvalidArgumentError(
                f"{where} is called within the function of another call, which has its key current:"
                " visit the keys one call after the other"
            )
        if not any(handle is state for handle in backend.states.values()):
            raise InvalidArgumentError(
                f"{where} takes a keyed state of the function, such as self."
                f"{next(iter(backend.states), 'state')}, not {shown(state)}"
            )
        if not callable(function):
            raise InvalidArgumentError(
                f"{where} takes a function of a key and its state, not {shown(function)}"
            )
        self._visits = True
        try:
            for keys in backend.existing(_VISITED if _is_narrow(state) else _FEW_VISITED):
                having = _having(state, keys)
                if self._in_batches:
                    self._visit_batch(keys, having, state, function)
                else:
                    self._visit(keys, having, state, function)
        finally:
            self._visits = False
            backend.clear_current_key()
            if run.named:
                backend.set_current_namespace(None)

    def _visit(
        self, keys: KeyBatch, having: np.ndarray[Any, Any], state: Any, function: Any
    ) -> None:
        counted = isinstance(state, core.CollectionHandle)
        names = self._calls.key_values(keys.key_arrays())
        for i, (key, has) in enumerate(zip(names, having.tolist(), strict=True)):
            if not has:
                continue
            keys.select(i)
            if counted and not state.count():
                continue
            try:
                self._returned(function(key, state))
            except Exception as error:
                self._calls.note(error, "process_broadcast", f"apply_to_keyed_state, key {key!r}")
                raise

    def _visit_batch(
        self, keys: KeyBatch, having: np.ndarray[Any, Any], state: Any, function: Any
    ) -> None:
        if isinstance(state, core.CollectionHandle):
            for i in range(len(keys)):
                keys.select(i)
                having[i] = state.count() > 0
            self._run.backend.clear_current_key()
        if not having.all():
            keys = keys_at(self._run.backend, keys, np.flatnonzero(having))
        if len(keys):
            self._returned(function(keys, state))

    def _returned(self, value: Any) -> None:
        if value is not None:
            raise WrongTypeError(
                f"operator {self._run.context.uid!r}: the function of apply_to_keyed_state "
                f"returned {shown(value)}: it reads and writes the state and returns nothing; "
                "rows that it makes go into a list, which process_broadcast yields"
            )


def _is_narrow(state: Any) -> bool:
    """Whether it takes little memory to see which of many keys have something in a state."""
    if isinstance(state, core.CollectionHandle):
        return True
    return not isinstance(state, AggregatingHandle) and not state.type.is_bytes


def _having(state: Any, keys: KeyBatch) -> np.ndarray[Any, Any]:
    """Which keys have something in a state; for a list or a map, which may have."""
    if isinstance(state, core.CollectionHandle):
        return np.ones(len(keys), bool)
    # A result is there without a value, too: 0 for a count.
    values = (
        state.accumulators(keys) if isinstance(state, AggregatingHandle) else state._exported(keys)
    )
    if isinstance(values, list):
        return np.array([value is not None for value in values], bool)
    valid: Any = pc.is_valid(values)
    return np.array(valid.to_numpy(zero_copy_only=False), bool)
