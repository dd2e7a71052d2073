"""What a backend's states are in plain Python: dicts and lists, with the time of each element.

A kind keeps ``cells``, one per row (a key with its namespace): what is there whether or not it has
expired. The rules of time are those of csrc/table/ttl.h, written down a second time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pystate as ps

Row: TypeAlias = "tuple[Any, Any]"
Cells: TypeAlias = "dict[Row, Any]"


@dataclass
class Clock:
    processing: int | None = None
    watermark: int | None = None
    event: int | None = None

    def tell(self, backend: ps.KeyedStateBackend) -> None:
        backend.set_clock(
            processing_time=self.processing, watermark=self.watermark, event_time=self.event
        )


#: When something was written that had expired and was seen.
SHOWN = -(1 << 63) + 1


class Kind:
    """One state of all rows."""

    def __init__(self, name: str, clock: Clock, ttl: ps.StateTtl | None) -> None:
        self.name = name
        self.clock = clock
        self.ttl = ttl
        self.cells: Cells = {}

    def clone(self, cells: Cells, ttl: ps.StateTtl | None) -> Kind:
        """The same state of another backend, which has the same clock."""
        other = copy.copy(self)
        other.ttl = ttl
        other.cells = copy.deepcopy(cells)
        return other

    # -- time

    def now(self) -> int | None:
        if self.ttl is None:
            return None
        return self.clock.watermark if self.ttl.time == "event" else self.clock.processing

    def stamp(self) -> int | None:
        if self.ttl is None or self.ttl.time == "processing":
            return self.clock.processing
        known = [t for t in (self.clock.event, self.clock.watermark) if t is not None]
        return max(known, default=None)

    def rewritten(self, cell: list[Any] | None) -> int | None:
        """The time that a write leaves in place of what was there."""
        stamp = self.stamp()
        by_rows = self.ttl is not None and self.ttl.time == "event"
        if cell is None or cell[1] is None or stamp is None or not by_rows:
            return stamp
        return max(stamp, cell[1])

    def expired(self, written: int | None) -> bool:
        now = self.now()
        if self.ttl is None or written is None:
            return False
        return written == SHOWN or (now is not None and now - written >= self.ttl.duration_ms)

    def hides(self, written: int | None) -> bool:
        return (not self.is_lenient or written == SHOWN) and self.expired(written)

    def read_at(self, written: int | None) -> int | None:
        """The time that reading leaves to a value that was seen."""
        if self.is_lenient and self.expired(written):
            return SHOWN
        return self.stamp() if self.counts_reads and self.is_stale(written) else written

    def is_stale(self, written: int | None) -> bool:
        stamp = self.stamp()
        if self.ttl is None or stamp is None:
            return False
        if written is None:
            return True
        return stamp > written and stamp - written >= self.ttl.granularity_ms

    @property
    def is_lenient(self) -> bool:
        return self.ttl is not None and self.ttl.visibility == "return_if_not_cleaned_up"

    @property
    def counts_reads(self) -> bool:
        return self.ttl is not None and self.ttl.update == "read_and_write"

    def read(self, row: Row) -> Any:
        raise NotImplementedError

    def read_all(self, rows: list[Row]) -> list[Any]:
        """A batch sees a row at each place of it."""
        seen = {row: self.read(row) for row in dict.fromkeys(rows)}
        return [seen[row] for row in rows]

    # -- life

    def flush(self) -> None:
        """Nothing waits."""

    def discard(self) -> None:
        """Nothing waits."""

    def sweep(self) -> None:
        """What has expired goes; what has no time yet gets one."""
        if self.ttl is None or self.now() is None:
            return
        for row in list(self.cells):
            self.sweep_row(row)

    def sweep_row(self, row: Row) -> None:
        raise NotImplementedError

    def clear(self, row: Row) -> None:
        self.cells.pop(row, None)

    def is_visible(self, row: Row) -> bool:
        raise NotImplementedError

    def retimed(self) -> None:
        """Restored from files of a state without times."""
        raise NotImplementedError


class Value(Kind):
    """A value and its time."""

    default: Any = None

    def read(self, row: Row) -> Any:
        cell = self.cells.get(row)
        if cell is None or self.hides(cell[1]):
            return copy.deepcopy(self.default)
        cell[1] = self.read_at(cell[1])
        return cell[0]

    def write(self, row: Row, value: Any) -> None:
        if value is None:
            self.clear(row)
            return
        cell = self.cells.get(row)
        settled = cell is not None and not self.is_stale(cell[1]) and not self.expired(cell[1])
        if cell is not None and settled and cell[0] == value:
            return
        self.cells[row] = [copy.deepcopy(value), self.rewritten(cell)]

    def store(self, row: Row, value: Any) -> None:
        """A write whose time is noted whatever was there."""
        self.cells[row] = [value, self.rewritten(self.cells.get(row))]

    def unhidden(self, row: Row) -> Any:
        """As a column operation sees it: without the default, and not counted as read."""
        cell = self.cells.get(row)
        return None if cell is None or self.hides(cell[1]) else cell[0]

    def is_visible(self, row: Row) -> bool:
        return row in self.cells and not self.hides(self.cells[row][1])

    def sweep_row(self, row: Row) -> None:
        cell = self.cells[row]
        if cell[1] is None:
            cell[1] = self.stamp()
        elif self.expired(cell[1]):
            del self.cells[row]

    def retimed(self) -> None:
        for cell in self.cells.values():
            cell[1] = self.stamp()


class Cached(Value):
    """Objects: what is updated is written when the clock moves, a sweep or a seal comes."""

    def __init__(self, name: str, clock: Clock, ttl: ps.StateTtl | None) -> None:
        super().__init__(name, clock, ttl)
        self.waiting: dict[Row, Any] = {}

    def clone(self, cells: Cells, ttl: ps.StateTtl | None) -> Kind:
        other = super().clone(cells, ttl)
        assert isinstance(other, Cached)
        other.waiting = {}
        return other

    def read(self, row: Row) -> Any:
        if row not in self.waiting:
            return super().read(row)
        value = self.waiting[row]
        return copy.deepcopy(self.default) if value is None else value

    def write(self, row: Row, value: Any) -> None:
        self.waiting[row] = copy.deepcopy(value)

    def clear(self, row: Row) -> None:
        self.waiting.pop(row, None)
        super().clear(row)

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for row, value in waiting.items():
            super().write(row, value)

    def discard(self) -> None:
        self.waiting.clear()

    def is_visible(self, row: Row) -> bool:
        if row in self.waiting:
            return self.waiting[row] is not None
        return super().is_visible(row)


class Items(Kind):
    """A list of items with their times.

    Expired items at the head may go at any time: where they can be seen, `agree` notes it.
    """

    def read(self, row: Row) -> list[Any]:
        seen = [cell for cell in self.cells.get(row, []) if not self.hides(cell[1])]
        young = [cell for cell in seen if not self.expired(cell[1])]
        if self.counts_reads and any(self.is_stale(written) for _, written in young):
            stamp = self.stamp()
            for cell in young:
                if cell[1] is None or cell[1] < stamp:
                    cell[1] = stamp
        if self.is_lenient and len(young) < len(seen):
            # Who has seen what had expired has seen the last of it.
            self.cells[row] = young
            if not young:
                self.clear(row)
        return [item for item, _ in seen]

    def append(self, row: Row, item: Any) -> None:
        self.cells.setdefault(row, []).append([copy.deepcopy(item), self.stamp()])

    def move(self, source: Row, target: Row) -> None:
        """Append items to another row's: with their times, or now where they have none."""
        for item, written in self.cells.pop(source, []):
            time = self.stamp() if written is None else written
            self.cells.setdefault(target, []).append([item, time])

    def agree(self, row: Row, found: list[Any]) -> None:
        """Compare, and take over which expired items have gone."""
        if self.is_lenient:
            self.trim(row, len(found))
        assert found == self.read(row), (self.name, row, found, self.cells.get(row))

    def trim(self, row: Row, left: int) -> None:
        """So many are there: the others were at the head and had expired."""
        cell = self.cells.get(row, [])
        gone = len(cell) - left
        assert gone >= 0, (self.name, row, left, cell)
        assert all(self.expired(written) for _, written in cell[:gone]), (self.name, row)
        if left:
            self.cells[row] = cell[gone:]
        else:
            self.clear(row)

    def is_visible(self, row: Row) -> bool:
        # Of lenient lists nobody can tell before looking.
        cell = self.cells.get(row, [])
        return any(not self.expired(written) for _, written in cell)

    def sweep_row(self, row: Row) -> None:
        for cell in self.cells[row]:
            if cell[1] is None:
                cell[1] = self.stamp()

    def retimed(self) -> None:
        for cell in self.cells.values():
            for item in cell:
                item[1] = self.stamp()


class Entries(Kind):
    """A dict of values with their times."""

    def read(self, row: Row) -> dict[Any, Any]:
        seen = {key: self.get(row, key) for key in self.visible(row)}
        for key, (_, written) in list(self.cells.get(row, {}).items()):
            if self.is_lenient and self.expired(written):
                self.remove(row, key)
        return seen

    def visible(self, row: Row) -> list[Any]:
        cell = self.cells.get(row, {})
        return [key for key, (_, written) in cell.items() if not self.hides(written)]

    def get(self, row: Row, key: Any) -> Any:
        entry = self.cells.get(row, {}).get(key)
        if entry is None or self.hides(entry[1]):
            return None
        entry[1] = self.read_at(entry[1])
        return entry[0]

    def contains(self, row: Row, key: Any) -> bool:
        self.get(row, key)
        return key in self.visible(row)

    def get_all(self, places: Iterable[tuple[Row, Any]]) -> list[Any]:
        """A batch sees an entry at each place of it."""
        places = list(places)
        seen = {place: self.get(*place) for place in dict.fromkeys(places)}
        return [seen[place] for place in places]

    def put(self, row: Row, key: Any, value: Any) -> None:
        entry = self.cells.get(row, {}).get(key)
        settled = entry is not None and not self.is_stale(entry[1]) and not self.expired(entry[1])
        if entry is None or not settled or entry[0] != value:
            time = self.rewritten(entry)
            self.cells.setdefault(row, {})[key] = [copy.deepcopy(value), time]

    def remove(self, row: Row, key: Any) -> None:
        cell = self.cells.get(row, {})
        cell.pop(key, None)
        if not cell:
            self.cells.pop(row, None)

    def is_visible(self, row: Row) -> bool:
        return bool(self.visible(row))

    def sweep_row(self, row: Row) -> None:
        for key, entry in list(self.cells[row].items()):
            if entry[1] is None:
                entry[1] = self.stamp()
            elif self.expired(entry[1]):
                self.remove(row, key)

    def retimed(self) -> None:
        for cell in self.cells.values():
            for entry in cell.values():
                entry[1] = self.stamp()


class Timers:
    """Who is to be woken when."""

    domains: ClassVar[tuple[ps.timers.TimeDomain, ...]] = ("event", "processing")

    def __init__(self) -> None:
        self.waiting: dict[str, set[tuple[int, Row]]] = {domain: set() for domain in self.domains}

    def copy(self) -> Timers:
        other = Timers()
        other.waiting = {domain: set(found) for domain, found in self.waiting.items()}
        return other

    def rows(self) -> set[Row]:
        return {row for found in self.waiting.values() for _, row in found}

    def earliest(self, domain: str) -> int | None:
        return min((at for at, _ in self.waiting[domain]), default=None)
