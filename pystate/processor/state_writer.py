"""State that is written from tables: a savepoint that a job begins with.

Rows are placed by the hash of their keys. Each range's rows become a state file, and
``savepoint.json``, which makes the folder a savepoint, is written last.

Thread safety: functions without state; a `StateRows` is immutable.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.base.arguments import checked_uid, integer, mapping, shown
from pystate.base.arguments import text as checked_text
from pystate.checkpoint.copies import for_all, place
from pystate.checkpoint.job_file import SAVEPOINT_FILE, JobFile, default_max_parallelism, library
from pystate.checkpoint.manifest import FORMAT_VERSION, Manifest
from pystate.checkpoint.refs import KEPT, InputState, OperatorState, RangeState, only_input
from pystate.checkpoint.savepoint import (
    Savepoint,
    check_destination,
    files_of,
    finish_savepoint,
    manifest_of,
    read_savepoint,
)
from pystate.epochs.rescale import gather_instances
from pystate.epochs.watermarks import smallest
from pystate.errors import DeclarationError, InvalidArgumentError, PystateError, WrongTypeError
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import declarations
from pystate.processor.epochs import storage_at
from pystate.processor.scan import StateScan
from pystate.processor.state_reader import read_state
from pystate.state.columns import NAMESPACE
from pystate.state.declaration import Defaults, State
from pystate.state.kinds import declared_as
from pystate.state.operator_spec import OperatorSpec, stored_defaults, stored_ttls
from pystate.state.value import ValueState
from pystate.tables.range_rows import NOT_ITS_RESULT, is_kept, write_range
from pystate.tables.timers import TIMER_DOMAIN, TIMER_MS
from pystate.types.arrays import as_array, hash_keys, key_groups
from pystate.types.keys import MAX_PARALLELISM, KeyLike, parse_key
from pystate.types.state_type import TypeLike, parse_type

_PARALLELISM = 8


@dataclass(frozen=True)
class StateRows:
    """An operator's state as rows, for `write_state`.

    Attributes
    ----------
    rows : pyarrow.Table, or what `pyarrow.table` takes
        A row per key, as `read_state` gives them: the key columns, the column ``namespace`` if the
        operator has namespaces, and a column per state. A null is an absent value, a null or empty
        list or map an absent one. Objects are given as their pickled bytes, and what means and
        sketches keep as ``read_state(..., accumulators=True)`` gives it. With
        `pystate.spark.write_state` it is a DataFrame.
    key : type, or mapping or list of (name, type)
        The key, as for `open`.
    states : mapping of str to declaration, or a stateful function
        What the job declares. Counts, sums, minima, maxima and reducing states have their result.
    namespace : str or pyarrow.DataType, optional
        The type of namespaces.
    timers : pyarrow.Table, or what `pyarrow.table` takes, optional
        A row per timer: the key columns, the namespace, ``timer_domain`` and ``timer_ms``.
    max_event_time_ms : int, or mapping of str to int, optional
        The largest event time that the operator has seen, from which its watermark follows; of an
        operator of two inputs those of ``"left"`` and ``"right"``. By default it has both from the
        operator that is replaced.
    """

    rows: Any
    key: KeyLike
    states: Any
    namespace: TypeLike | None = None
    timers: Any = None
    max_event_time_ms: int | Mapping[str, int] | None = None

    @classmethod
    def read(
        cls, location: str | os.PathLike[str], uid: str | None = None, *, epoch: int | None = None
    ) -> StateRows:
        """Read all that a checkpoint or savepoint has of an operator, whatever its kind.

        Parameters
        ----------
        location : str or path
            The checkpoint of a job or store, or a savepoint.
        uid : str, optional
            The operator. It may be left out if there is only one.
        epoch : int, optional
            A retained epoch; by default the newest.

        Returns
        -------
        StateRows
            Its states, timers and event times. Written under the same uid, the operator goes on
            as if nothing had happened; `dataclasses.replace` changes the rows before.

        Raises
        ------
        CheckpointError
            As for `read_state`.
        """
        scan = StateScan.of(storage_at(location, "StateRows.read"), uid, epoch=epoch)
        operator = scan.operator
        timers = None
        if operator.timers:
            timers = read_state(location, operator.uid, timers=True, epoch=scan.epoch)
        seen = {
            given.name: given.max_event_time_ms
            for given in operator.inputs
            if given.max_event_time_ms is not None and given.name != KEPT
        }
        texts = dict(operator.defaults)
        states = {
            name: state.with_default(texts[name])
            if name in texts and isinstance(state, ValueState)
            else state
            for name, state in scan.states.items()
        }
        return cls(
            read_state(location, operator.uid, accumulators=True, epoch=scan.epoch, defaults=False),
            dict(operator.key_schema),
            states,
            None if scan.namespace is None else scan.namespace.ddl,
            timers,
            seen or None,
        )

    def declarations(self, uid: str) -> dict[str, State[Any]]:
        """Return the declarations of the operator's states."""
        given = self.states
        cls = given if isinstance(given, type) else type(given)
        if issubclass(cls, StatefulFunction):
            given = declarations(given)
        example = "states={'n': ps.ValueState('long')}"
        states: dict[str, State[Any]] = {}
        for name, state in mapping(given, f"operator {uid!r}: states", example).items():
            if not isinstance(state, State):
                raise DeclarationError(
                    f"operator {uid!r}, state {name!r}: expected a declaration, not {shown(state)}"
                )
            states[name] = state
        return states

    def operator(self, uid: str, max_parallelism: int) -> OperatorSpec:
        """Return what determines the operator's tables."""
        # As files know them: without defaults and times to live.
        states = {
            name: declared_as(state.in_files(None).stored_as())
            for name, state in self.declarations(uid).items()
        }
        return OperatorSpec(
            uid=checked_uid(uid),
            key=parse_key(self.key),
            states=states,
            namespace=None if self.namespace is None else parse_type(self.namespace, "namespace"),
            timers=self.timers is not None,
            max_parallelism=max_parallelism,
        )


def write_state(
    destination: str | os.PathLike[str],
    operators: Mapping[str, StateRows],
    *,
    base: str | os.PathLike[str] | None = None,
    remove: Sequence[str] = (),
    max_parallelism: int | None = None,
    parallelism: int | None = None,
    job: str = "written",
) -> Savepoint:
    """Write a savepoint whose state comes from tables; `Job(restore=...)` begins with it.

    Parameters
    ----------
    destination : str or path
        A folder that is empty, or is not there yet.
    operators : mapping of str to StateRows
        The rows of each operator, by its uid.
    base : str or path, optional
        A savepoint. Its other operators, its run keys and its stream's position are taken over;
        operators of the same uid are replaced. Files are shared where the file system can do it.
    remove : sequence of str
        The uids of operators of `base` that are left out, with all of their state.
    max_parallelism : int, optional
        Number of key groups, which the job must have, too; by default that of `base`, else 128.
    parallelism : int, optional
        In how many files each operator is written, 8 by default. A job of any parallelism reads it.
    job : str
        The name of the job, if there is no `base`. A job of any name may begin with the savepoint.

    Returns
    -------
    Savepoint

    Raises
    ------
    InvalidArgumentError
        The destination is not empty, a column is missing or unknown, a key stands in two rows, a
        timer is none, or `base` has no operator that is to be removed. `WrongTypeError` for a
        column of another type.
    DeclarationError
        A state cannot be written.
    CheckpointError
        A file cannot be written. Nothing is left of what was written.

    Notes
    -----
    Values that expire count as written when the job first looks at them.

    See Also
    --------
    pystate.spark.write_state : the same from DataFrames, on all executors.

    Examples
    --------
    >>> import tempfile, pystate as ps
    >>> folder = tempfile.mkdtemp() + "/savepoint"
    >>> rows = {"user": ["ann", "bob"], "n": [3, 5]}
    >>> counts = ps.StateRows(rows, {"user": "string"}, {"n": ps.ValueState("long")})
    >>> savepoint = ps.write_state(folder, {"counts": counts})
    >>> ps.read_state(folder).sort_by("user").to_pylist()
    [{'user': 'ann', 'n': 3}, {'user': 'bob', 'n': 5}]
    """
    with Destination(destination, base, max_parallelism, parallelism, job) as savepoint:
        savepoint.leave_out(remove, operators)
        for uid, rows in checked_operators(operators).items():
            savepoint.add(
                rows, _write(savepoint, rows.operator(uid, savepoint.max_parallelism), rows)
            )
        return savepoint.finish()


def checked_operators(operators: Any) -> Mapping[str, StateRows]:
    """Return the rows of all operators, if they are what they should be."""
    example = "{'counts': ps.StateRows(rows, key, states)}"
    for uid, rows in mapping(operators, "write_state: operators", example).items():
        if not isinstance(rows, StateRows):
            raise InvalidArgumentError(
                f"write_state: operator {uid!r} is a StateRows, not {shown(rows)}: write {example}"
            )
    checked: Mapping[str, StateRows] = operators
    return checked


class Destination:
    """A savepoint that is being written; what there is of it is removed after an error.

    Parameters are those of `write_state`.
    """

    def __init__(
        self,
        destination: str | os.PathLike[str],
        base: str | os.PathLike[str] | None,
        max_parallelism: int | None,
        parallelism: int | None,
        job: str,
    ) -> None:
        self.storage = storage_at(destination, "write_state")
        self._base = None if base is None else storage_at(base, "write_state: base")
        check_destination(self._base, self.storage)
        self._job = checked_text(job, "write_state: job")
        self._written: dict[str, OperatorState] = {}
        self._left_out: frozenset[str] = frozenset()
        wanted = None
        if parallelism is not None:
            integer(parallelism, "write_state: parallelism", least=1, most=MAX_PARALLELISM)
        if max_parallelism is not None:
            what = "write_state: max_parallelism"
            wanted = integer(max_parallelism, what, least=1, most=MAX_PARALLELISM)
        if self._base is None:
            groups = wanted or default_max_parallelism(parallelism or _PARALLELISM)
            self._manifest = _empty_manifest(groups)
        else:
            self._manifest = manifest_of(self._base, read_savepoint(self._base))
            if wanted not in (None, self._manifest.max_parallelism):
                raise InvalidArgumentError(
                    f"write_state: {self._base.uri} has max_parallelism="
                    f"{self._manifest.max_parallelism}, not {wanted}: ps.rescale changes it"
                )
        self.max_parallelism = self._manifest.max_parallelism
        default = min(_PARALLELISM, self.max_parallelism)
        self.parallelism = integer(
            default if parallelism is None else parallelism,
            "write_state: parallelism",
            least=1,
            most=self.max_parallelism,
        )

    @property
    def epoch(self) -> int:
        """The epoch that the savepoint holds."""
        return self._manifest.epoch

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(PystateError, OSError):
                self.storage.delete(SAVEPOINT_FILE)  # without it, what is left is no savepoint
                for entry in self.storage.list(""):  # it was empty
                    self.storage.delete(entry.path)

    def leave_out(self, remove: Any, operators: Any) -> None:
        """Note which operators of the base are not taken over."""
        example = "remove=['counts']"
        if isinstance(remove, str) or not isinstance(remove, Collection):
            raise InvalidArgumentError(
                f"write_state: remove is a list of uids, not {shown(remove)}: write {example}"
            )
        known = ", ".join(repr(operator.uid) for operator in self._manifest.operators) or "none"
        for uid in remove:
            checked_uid(uid)
            if isinstance(operators, Mapping) and uid in operators:
                raise InvalidArgumentError(
                    f"write_state: operator {uid!r} is to be written and to be removed: rows that "
                    "are given replace it, so leave it out of remove"
                )
            if self._manifest.operator(uid) is None:
                raise InvalidArgumentError(
                    "write_state: remove leaves out operators of a base, and there is no base"
                    if self._base is None
                    else f"write_state: {self._base.uri} has no operator {uid!r} to remove; it has "
                    f"{known}"
                )
        self._left_out = frozenset(remove)

    def add(self, rows: StateRows, written: tuple[OperatorSpec, tuple[RangeState, ...]]) -> None:
        """Note an operator whose files are written."""
        operator, ranges = written
        replaced = self._manifest.operator(operator.uid)
        time_ms = rows.max_event_time_ms
        watermark_ms = None
        if isinstance(time_ms, Mapping):
            inputs = tuple(InputState(name, each) for name, each in time_ms.items())
        else:
            inputs = only_input(time_ms)
        if time_ms is None and replaced is not None:
            # What the operator keeps is written anew.
            inputs = tuple(given for given in replaced.inputs if given.name != KEPT)
            watermark_ms = replaced.watermark_ms
        written_state = OperatorState(
            uid=operator.uid,
            parallelism=self.parallelism,
            key_schema=tuple((name, type_.ddl) for name, type_ in operator.key),
            state_schema=operator.stored_states(),
            ranges=ranges,
            timers=operator.timers,
            inputs=inputs,
            watermark_ms=watermark_ms,
            defaults=_defaults(rows.declarations(operator.uid), replaced),
            ttls=stored_ttls(rows.declarations(operator.uid)),
        )
        self._written[operator.uid] = gather_instances(written_state, self.max_parallelism)

    def finish(self) -> Savepoint:
        """Take over the other operators, and make the folder a savepoint."""
        gone = self._left_out.union(self._written)
        kept = [operator for operator in self._manifest.operators if operator.uid not in gone]
        base = self._base
        if base is not None:
            for_all(
                lambda ref: place(ref, [base], self.storage, copy=False), files_of(kept).values()
            )
        operators = sorted([*kept, *self._written.values()], key=lambda operator: operator.uid)
        manifest = replace(
            self._manifest,
            operators=tuple(operators),
            watermark_ms=smallest(operators),
            format_version=FORMAT_VERSION,  # older ones know no watermarks of operators
        )
        # Attempts that failed, and were repeated, may have left files.
        named = files_of(operators)
        for entry in self.storage.list("state"):
            if entry.path not in named:
                self.storage.delete(entry.path)
        job = JobFile.new(self._job, self.max_parallelism)
        return finish_savepoint(base, manifest, self.storage, job=job)


def _defaults(states: Mapping[str, State[Any]], replaced: OperatorState | None) -> Defaults:
    """The declared defaults; objects keep the one that they had, which is not unpickled."""
    defaults = dict(stored_defaults(states))
    if replaced is not None:
        before, schema = dict(replaced.defaults), dict(replaced.state_schema)
        for name, state in states.items():
            if (
                name not in defaults
                and name in before
                and state.stored_as() == schema[name] == "object"
            ):
                defaults[name] = before[name]
    return tuple(sorted(defaults.items()))


def _empty_manifest(max_parallelism: int) -> Manifest:
    now_ms = time.time_ns() // 1_000_000
    return Manifest(
        epoch=1,
        predecessor=0,
        evaluation_id=uuid.uuid4().hex,
        run_id=uuid.uuid4().hex,
        term=0,
        host=socket.gethostname(),
        max_parallelism=max_parallelism,
        processing_time_ms=now_ms,
        created_ms=now_ms,
        library=library(),
        operators=(),
    )


def check_columns(operator: OperatorSpec, names: list[str], *, timers: bool = False) -> list[str]:
    """Return the names of the columns of rows or timers, which must be just these."""
    wanted = [name for name, _ in operator.key]
    if operator.namespace is not None:
        wanted.append(NAMESPACE)
    wanted += [TIMER_DOMAIN, TIMER_MS] if timers else list(operator.states)
    what = f"operator {operator.uid!r}, {'timers' if timers else 'rows'}"
    counts, known = Counter(names), set(wanted)
    for name in wanted:
        if counts[name] != 1:
            raise InvalidArgumentError(
                f"{what}: there is no column {name!r}, or several; the columns are "
                f"{', '.join(map(repr, names))}, and should be {', '.join(map(repr, wanted))}"
            )
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"{what}: nothing declares the column {name!r}; the columns should be "
                f"{', '.join(map(repr, wanted))}"
            )
    return wanted


def check_kept(operator: OperatorSpec, is_binary: Callable[[str], bool]) -> None:
    """Refuse the results of aggregates whose state is more than their result."""
    for name, state in operator.states.items():
        if state.columns(name)[0].is_accumulator and not is_binary(name):
            raise DeclarationError(
                f"operator {operator.uid!r}, state {name!r}: {NOT_ITS_RESULT.format(state)}"
            )


def _write(
    savepoint: Destination, operator: OperatorSpec, given: StateRows
) -> tuple[OperatorSpec, tuple[RangeState, ...]]:
    rows = _split(savepoint, operator, given.rows, timers=False)
    timers = (
        None if given.timers is None else _split(savepoint, operator, given.timers, timers=True)
    )
    ranges: dict[int, RangeState] = {}

    def write(index: int) -> None:
        due = None if timers is None else timers[index]
        ranges[index] = write_range(
            savepoint.storage,
            operator,
            index,
            savepoint.parallelism,
            savepoint.epoch,
            rows[index],
            due,
        )

    for_all(write, range(savepoint.parallelism))
    return operator, tuple(ranges[index] for index in range(savepoint.parallelism))


def _split(
    savepoint: Destination, operator: OperatorSpec, given: Any, *, timers: bool
) -> list[pa.Table]:
    """Bring rows to their ranges."""
    try:
        table: pa.Table = given if isinstance(given, pa.Table) else pa.table(given)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise WrongTypeError(
            f"operator {operator.uid!r}: rows are a pyarrow.Table, a pandas DataFrame, or a dict "
            f"of columns, not {shown(given)}: {error}"
        ) from error
    table = table.select(check_columns(operator, table.column_names, timers=timers))
    if not timers:
        check_kept(operator, lambda name: is_kept(table.schema.field(name).type))
    columns = [
        as_array(table.column(name), type_, f"operator {operator.uid!r}, key column {name!r}")
        for name, type_ in operator.key
    ]
    groups = key_groups(hash_keys(columns), savepoint.max_parallelism).astype(np.int64)
    ranges = groups * savepoint.parallelism // savepoint.max_parallelism
    order = np.argsort(ranges, kind="stable")
    ends = np.searchsorted(ranges[order], np.arange(savepoint.parallelism + 1))
    ordered = table.take(order)
    return [
        ordered.slice(start, stop - start)
        for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
