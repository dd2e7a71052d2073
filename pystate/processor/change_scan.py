"""The keys of an operator whose states differ between two epochs, with both of their states.

An epoch's files continue those of the epoch before it, and a merge puts one file in place of some.
Which state files make up is said by a lineage id, on which the next delta was built. So where a
delta of the newer epoch was built on the state of the older one, it and those after it are all that
was written since, in whatever files what was before them lies. Where a merge went beyond that
state, the epochs between the two say which deltas those were. Of the keys in these deltas, of any
record, the states are looked up: first without the deltas, then with them. Nothing else is read,
and a bounded number of keys at a time.

All keys are compared, a part of the state at a time, only where files do not say what was written:
where a state was dropped and declared anew in between, or a field was added that older values have
filled in, or the checkpoint was set back.

Both sides are what is stored: that something expires is no change, as nothing is written then. It
is one where a delta removes it, as long as no merge of files has left it out before.

Thread safety: functions without state; the objects are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.base.memory import process_budget
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, restrict
from pystate.checkpoint.state_files import OpenFile, open_file
from pystate.epochs.rescale import plan_rescale
from pystate.errors import SchemaError
from pystate.processor.epochs import open_named
from pystate.processor.key_files import KeyFiles, fill
from pystate.processor.scan import StateScan, load_files
from pystate.processor.selection import WantedKeys
from pystate.state.declaration import file_name
from pystate.state.evolution import stored_change
from pystate.state.key_batch import KeyBatch
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import key_arrays
from pystate.types.equality import present
from pystate.types.keys import parse_key

#: Rows before and after, of the same keys in the same order.
Sides = tuple[pa.RecordBatch, pa.RecordBatch]
Deltas = tuple[FileRef, ...]
Bounds = tuple[int, int]

#: About how many records of deltas are read at a time, and how many deltas are open.
RECORDS, _OPEN_FILES = 1 << 16, 64
_HASHES = 1 << 64
_NEVER = 1 << 62


class ChangePart(NamedTuple):
    """A part of what is compared, which `read` reads."""

    read: Callable[[], Iterator[Sides]]
    records: int
    """About how many records of deltas say which keys are looked up."""


@dataclass(frozen=True)
class ChangeScan:
    """What is compared: an operator in a newer epoch, and what it was in an older one."""

    new: StateScan
    old_epoch: int
    old: OperatorState | None
    """None if it had no state in the older epoch."""
    between: Callable[[], Iterable[Manifest]]
    """Reads the manifests of the epochs between the two, oldest first; asked where it helps."""

    @classmethod
    def of(
        cls, new: StateScan, older: Manifest | None, between: Callable[[], Iterable[Manifest]]
    ) -> ChangeScan:
        """Compare with an older epoch, or None: with no state at all.

        `SchemaError` if states of the older epoch cannot be read as the newer one declares them.
        """
        old = None if older is None else older.operator(new.operator.uid)
        if older is None or old is None:
            return cls(new, new.epoch, None, between)
        _check_types(old, older.epoch, new)
        return cls(new, older.epoch, old, between)

    def parts(self, looking: KeyFiles) -> list[ChangePart]:
        """What to read: all keys whose states differ are in one of these parts, each once."""
        found: list[ChangePart] = []
        for before, after in self._ranges():
            part = _Part(self, before, after, looking)
            if self.new.keys is None:
                found += part.parts()
                continue
            keys = self.new.keys.among(*after.bounds)
            if len(keys) and any(rest != () for _, rest in part.cut()):
                found.append(ChangePart(partial(part.compare_keys, keys), len(keys)))
        return found

    def _ranges(self) -> Iterator[tuple[RangeState, RangeState]]:
        """The ranges of the newer epoch, cut where the older one's ranges end."""
        for after in self.new.operator.ranges:
            empty = RangeState(0, *after.bounds, "")
            for before in (empty,) if self.old is None else self.old.ranges:
                bounds = before.overlap(after.bounds)
                if bounds is not None:
                    yield restrict(before, bounds), restrict(after, bounds)

    @cached_property
    def chain(self) -> list[OperatorState]:
        """The operator in all epochs from the older to the newer one; empty if one lacks it."""
        if self.old is None or self.new.epoch == self.old_epoch + 1:
            return []
        found = [self.old]
        expected = self.old_epoch
        for manifest in self.between():
            expected += 1
            operator = manifest.operator(self.new.operator.uid)
            if operator is None or manifest.epoch != expected:
                return []
            found.append(operator)
        return [*found, self.new.operator] if expected == self.new.epoch - 1 else []

    @cached_property
    def is_said(self) -> bool:
        """Whether deltas say all that was written: no state has begun anew, or been filled in."""
        if self.old is None:
            return False
        before, after = (dict(o.ranges[0].since) for o in (self.old, self.new.operator))
        for name in self._names:
            if name in self.old.states:
                if _since_of(name, before) != _since_of(name, after):
                    return False
            elif after.get(name, 0) <= self.old_epoch:
                return False
        return True

    @cached_property
    def is_unexpected(self) -> bool:
        """Whether files of the newer epoch do not follow those of the older one anywhere."""
        if self.old is None or not self.is_said:
            return False
        looking = KeyFiles(self.new.storage)  # which opens nothing
        cut = [rest for pair in self._ranges() for _, rest in _Part(self, *pair, looking).cut()]
        return any(rest is None for rest in cut)

    @cached_property
    def since_before(self) -> tuple[tuple[str, int], ...]:
        """From which epoch on the older epoch's files count, for the newer one's states.

        A state that the older epoch does not have counts in none, though files may have another one
        of its name.
        """
        assert self.old is not None
        since = dict(self.old.ranges[0].since)
        since.update({name: _NEVER for name in self._names if name not in self.old.states})
        return tuple(sorted(since.items()))

    @cached_property
    def _names(self) -> list[str]:
        """What files call the states that are read."""
        schema = dict(self.new.operator.state_schema)
        return [file_name(name, schema[name]) for name in self.new.read]


@dataclass(frozen=True)
class _Part:
    """Some key groups that are of one range in both epochs."""

    scan: ChangeScan
    before: RangeState
    after: RangeState
    looking: KeyFiles

    def parts(self) -> Iterator[ChangePart]:
        """What to read of them."""
        new = self.scan.new
        for bounds, rest in self.cut():
            before, after = restrict(self.before, bounds), restrict(self.after, bounds)
            if rest:
                changed = _Changed(self.scan, before, after, rest, self.looking)
                yield ChangePart(changed.rows, changed.records)
            elif rest is None:
                # All keys are compared, a part of the state at a time.
                whole = replace(new, operator=replace(new.operator, ranges=(after,)))
                for some in whole.split():
                    [state] = some.operator.ranges
                    older = restrict(before, state.bounds)
                    part = replace(self, before=older, after=state)
                    yield ChangePart(part.compare_all, sum(ref.rows for ref in state.files))

    def cut(self) -> list[tuple[Bounds, Deltas | None]]:
        """Key groups with the deltas that were written since; None if that is not known."""
        bounds = self.after.bounds
        if not self.scan.is_said or self.scan.old is None:
            return [(bounds, None)]
        pieces: list[tuple[Bounds, Deltas | None]] = []
        for low, high, rest in self._pieces([self.scan.old, self.scan.new.operator], bounds):
            if rest is None:
                pieces += [((a, b), r) for a, b, r in self._pieces(self.scan.chain, (low, high))]
            else:
                pieces.append(((low, high), rest))
        return _joined(pieces)

    def _pieces(
        self, chain: Sequence[OperatorState], bounds: Bounds
    ) -> Iterator[tuple[int, int, Deltas | None]]:
        """The deltas of consecutive epochs, for key groups in which all of these are alike."""
        for low, high in _uniform(bounds, chain):
            yield low, high, self._written(chain, (low, high))

    def _written(self, chain: Sequence[OperatorState], bounds: Bounds) -> Deltas | None:
        """The deltas that lead from the first to the last of several epochs."""
        if not chain:
            return None
        rest: list[FileRef] = []
        for earlier, later in pairwise(chain):
            ids = self._ids(earlier, later, bounds)
            if any(state.id in ids for state in _of(later, bounds)):
                continue  # nothing was written
            new = _behind(_counting(later, bounds), ids)
            if new is None or any(ref.kind != "delta" for ref in new):
                return None
            rest += new
        return tuple(rest)

    def _ids(self, earlier: OperatorState, later: OperatorState, bounds: Bounds) -> set[str]:
        """The ids of what the first epoch has, as it is, and as the second one has divided it."""
        ids = {state.id for state in _of(earlier, bounds)}
        ids |= {ref.id for ref in _counting(earlier, bounds)[-1:]}
        if [s.bounds for s in earlier.ranges] != [s.bounds for s in later.ranges]:
            planned = plan_rescale(earlier, later.parallelism, self.scan.new.max_parallelism)
            ids |= {state.id for state in planned if state.overlap(bounds) == bounds}
        return ids

    def compare_all(self) -> Iterator[Sides]:
        """Compare all keys."""
        new, bounds = self.scan.new, self.after.bounds
        with new.backend(bounds) as old_table, new.backend(bounds) as new_table:
            if self.scan.old is not None:
                before = replace(self.before, since=self.scan.since_before)
                load_files(new.storage, self.scan.old_epoch, old_table, before, before.files)
            load_files(new.storage, new.epoch, new_table, self.after, self.after.files)
            yield from _compared(old_table, new_table)

    def compare_keys(self, keys: WantedKeys) -> Iterator[Sides]:
        """Compare those that are asked for."""
        looking, new, bounds = self.looking, self.scan.new, self.after.bounds
        for some, files in looking.found(new.epoch, self.after, keys):
            with new.backend(bounds) as old_table, new.backend(bounds) as new_table:
                fill(new_table, files, self.after)
                if self.scan.old is not None:
                    before = replace(self.before, since=self.scan.since_before)
                    for _, older in looking.found(self.scan.old_epoch, before, some):
                        fill(old_table, older, before)
                yield from _compared(old_table, new_table)


@dataclass(frozen=True)
class _Changed:
    """Key groups of which it is known which deltas were written since."""

    scan: ChangeScan
    before: RangeState
    after: RangeState
    rest: Deltas
    """These deltas, oldest first."""
    looking: KeyFiles

    @property
    def records(self) -> int:
        """About how many records they have."""
        return int(sum((ref.rows + ref.tombstones) * ref.share for ref in self.rest))

    def rows(self) -> Iterator[Sides]:
        """Compare the keys of which the deltas have any record."""
        new, bounds = self.scan.new, self.after.bounds
        older, epoch = self._older()
        added = self._with(self.rest)
        for keys in self._keys():
            for some, files in self.looking.found(epoch, older, keys):
                # Where these come in parts, the keys of other parts are the same on both sides.
                for _, later in self.looking.found(new.epoch, added, some, above=True):
                    with new.backend(bounds) as old_table, new.backend(bounds) as new_table:
                        fill(old_table, files, older)
                        fill(new_table, [*files, *later], added)
                        yield from _compared(old_table, new_table)

    def _older(self) -> tuple[RangeState, int]:
        """What was there before these deltas, and of which epoch its files are."""
        added = {ref.path for ref in self.rest}
        own = [ref for ref in self.after.files if ref.path not in added]
        if len(self.after.files) - len(own) == len(self.rest):
            # The older epoch may be retired by now.
            return self._with(own), self.scan.new.epoch
        return self._with(self.before.files), self.scan.old_epoch

    def _with(self, files: Sequence[FileRef]) -> RangeState:
        return replace(self.after, base=None, deltas=tuple(files))

    def _keys(self) -> Iterator[WantedKeys]:
        """The keys, some at a time."""
        first, last = self.after.bounds
        places = (last - first + 1) * _HASHES
        parts = self.records // RECORDS + 1
        with ExitStack() as stack:
            few = len(self.rest) <= _OPEN_FILES
            kept = [stack.enter_context(self._opened(ref)) for ref in self.rest if few]
            for part in range(parts):
                begin, end = places * part // parts, places * (part + 1) // parts - 1
                place = (first + begin // _HASHES, first + end // _HASHES)
                hashes = (begin % _HASHES, end % _HASHES)
                if few:
                    yield from map(self._wanted, _gathered(kept, place, hashes))
                else:
                    yield self._wanted(*self._of_many(place, hashes))

    def _of_many(self, place: Bounds, hashes: tuple[int, int]) -> list[_Block]:
        """The keys of more deltas than are opened at a time; a key may be there several times."""
        blocks: list[_Block] = []
        for at in range(0, len(self.rest), _OPEN_FILES):
            with ExitStack() as stack:
                some = self.rest[at : at + _OPEN_FILES]
                files = [stack.enter_context(self._opened(ref)) for ref in some]
                blocks += _gathered(files, place, hashes)
        return blocks

    @contextmanager
    def _opened(self, ref: FileRef) -> Iterator[OpenFile]:
        new = self.scan.new
        with open_named(new.storage, new.epoch, ref) as file, open_file(file, ref) as opened:
            yield opened

    def _wanted(self, *blocks: _Block) -> WantedKeys:
        new = self.scan.new
        key = parse_key(list(new.operator.key_schema))
        types = [type_ for _, type_ in key]
        if new.namespace is not None:
            types.append(new.namespace)
        columns = [key_arrays(iter(parts), types) for _, parts in blocks]
        joined = [pa.concat_arrays(list(arrays)) for arrays in zip(*columns, strict=True)]
        joined = joined or [pa.array([], type_.arrow) for type_ in types]
        spaces = None if new.namespace is None else (new.namespace, joined.pop())
        return WantedKeys(key, joined, new.max_parallelism, spaces)


_Block = tuple[int, list[Any]]


def _gathered(files: Sequence[OpenFile], place: Bounds, hashes: tuple[int, int]) -> list[_Block]:
    """The keys of open files, from a first to a last key group and hash."""
    readers = [file.reader for file in files]
    name = "the keys of deltas"
    return core.gather_keys(readers, *place, name, process_budget(), *hashes)


def _since_of(name: str, since: Mapping[str, int]) -> dict[str, int]:
    """What is said of a state, and of its fields."""
    return {key: epoch for key, epoch in since.items() if key.partition("#")[0] == name}


def _uniform(bounds: Bounds, operators: Iterable[OperatorState]) -> Iterator[Bounds]:
    """Cut key groups where a file or a range of these epochs begins or ends."""
    ends = {bounds[0], bounds[1] + 1}
    for operator in operators:
        for state in operator.ranges:
            if state.overlap(bounds) is not None:
                for each in (state, *state.files):
                    ends |= {each.first_key_group, each.last_key_group + 1}
    cuts = sorted(end for end in ends if bounds[0] <= end <= bounds[1] + 1)
    return ((low, high - 1) for low, high in pairwise(cuts))


def _counting(operator: OperatorState, bounds: Bounds) -> list[FileRef]:
    """The files that count for key groups, restricted to these."""
    return [
        restrict(ref, part)
        for state in operator.ranges
        if state.overlap(bounds) is not None
        for ref in state.files
        if (part := ref.overlap(bounds)) is not None
    ]


def _of(operator: OperatorState, bounds: Bounds) -> list[RangeState]:
    """The range that has key groups."""
    return [state for state in operator.ranges if state.overlap(bounds) == bounds]


def _behind(files: Sequence[FileRef], ids: set[str]) -> Sequence[FileRef] | None:
    """The files that were written behind a state that has one of these ids; None if none has."""
    for at, ref in enumerate(files):
        if ref.kind == "delta" and ref.parent in ids:
            return files[at:]
    for at in range(len(files), 0, -1):
        if files[at - 1].id in ids:
            return files[at:]
    return None if files else ()


def _joined(pieces: Sequence[tuple[Bounds, Deltas | None]]) -> list[tuple[Bounds, Deltas | None]]:
    """Join neighbours for which the same deltas were written."""
    joined: list[tuple[Bounds, Deltas | None]] = []
    for bounds, rest in pieces:
        last, before = joined[-1] if joined else (bounds, None)
        if joined and _paths(before) == _paths(rest):
            whole = (last[0], bounds[1])
            same = None if rest is None else tuple(restrict(ref, whole) for ref in rest)
            joined[-1] = (whole, same)
        else:
            joined.append((bounds, rest))
    return joined


def _paths(rest: Deltas | None) -> list[str] | None:
    return None if rest is None else [ref.path for ref in rest]


def _compared(old: KeyedStateBackend, new: KeyedStateBackend) -> Iterator[Sides]:
    """The rows of two tables, and of the keys that one of them does not have."""
    for keys in new.existing():
        before = old.exported(_looked_up(old, _names(keys)))
        yield before, new.exported(keys)
    for keys in old.existing():
        after = new.exported(_looked_up(new, _names(keys)))
        gone = pa.array(~_exists(after, new))
        yield old.exported(keys).filter(gone), after.filter(gone)


def _check_types(older: OperatorState, epoch: int, new: StateScan) -> None:
    """Make sure that the older epoch's states can be read as the newer one declares them."""
    # Since a state was renamed, another one may have its former name.
    stored = {file_name(*pair): pair[1] for pair in older.state_schema}
    for name, declared in new.operator.state_schema:
        before = stored.get(file_name(name, declared), declared)
        if name not in new.read or before == declared:
            continue
        refused = stored_change(before, declared).types.refused
        if refused:
            raise SchemaError(
                f"changes: operator {older.uid!r}, state {name!r} is {before} in epoch "
                f"{epoch} and {declared} in epoch {new.epoch}: {refused[0]}: read both epochs by "
                "ps.read_state, and compare them"
            )


def _names(keys: KeyBatch) -> list[pa.Array[Any]]:
    """The key columns of a batch, and its namespaces."""
    spaces = [keys.namespaces()] if keys.table.has_namespaces else []
    return [*keys.key_arrays(), *spaces]


def _looked_up(table: KeyedStateBackend, names: list[pa.Array[Any]]) -> KeyBatch:
    if table.namespace is None:
        return table.keys(names)
    return table.keys(names[:-1], names[-1])


def _exists(rows: pa.RecordBatch, table: KeyedStateBackend) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row has any state: a key without any does not exist."""
    exists = np.zeros(rows.num_rows, np.bool_)
    for name in table.declarations:
        exists |= present(rows.column(name))
    return exists
