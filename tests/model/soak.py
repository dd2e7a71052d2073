"""A backend under churn for as long as one likes, beside a model of it in plain dicts.

Sizes drift, keys come and go, epochs are sealed, undone and read by a thread beside the writer;
files are written, merged and restored. Whatever happens, the backend equals the model, its memory
stays within a bound that its live state sets, and the only error is the one for the memory limit,
after which the epoch is undone and work goes on.

``python -m tests.model.soak --seconds 3600 --seed 1`` runs it by hand; `test_soak` runs it in a
control group whose memory is limited.
"""

from __future__ import annotations

import argparse
import queue
import random
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pystate as ps
from pystate.errors import LineageError, MemoryLimitError, SnapshotTooOldError

UNDO = 2
MIB = 1 << 20
FOREVER = 2**63 - 1
#: Memory may be so many times what a table restored from files takes, and so much more.
MOST_TIMES, MOST_MORE = 1.5, 24 * MIB
CHUNK = 2000
LONGEST_CHAIN = 24

STATES: dict[str, ps.State] = {
    "n": ps.ValueState("long", default=0),
    "text": ps.ValueState("string"),
    "words": ps.ValueState("array<string>"),
    "any": ps.ValueState(object),
    "items": ps.ListState("long"),
    "lines": ps.ListState("string"),
    "entries": ps.MapState("long", "string"),
    "most": ps.ReducingState("long", max),
    "mean": ps.AggregatingState(ps.Mean(), "long"),
}
READ_BESIDE = ("n", "text", "words", "any")


def text_of(token: int) -> str:
    """The text that a token stands for: its low 16 bits are the length."""
    piece = f"{token >> 16:x}."
    length = token & 0xFFFF
    return (piece * (length // len(piece) + 1))[:length]


def shown(state: str, cell: Any) -> Any:
    """What a read of the state gives, where the model keeps `cell`."""
    if cell is None:
        return {"n": 0, "items": [], "lines": [], "entries": {}}.get(state)
    if state == "text":
        return text_of(cell)
    if state == "words":
        return [text_of(token) for token in cell]
    if state == "lines":
        return [text_of(token) for token in cell]
    if state == "entries":
        return {key: text_of(token) for key, token in cell.items()}
    if state == "mean":
        return cell[0] / cell[1]
    return cell


class Model:
    """Cells by state and key, and how each epoch of the undo window changed them."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[int, Any]] = {name: {} for name in (*STATES, "timers")}
        self.journals: list[dict[tuple[str, int], Any]] = [{}]
        self.holding: Counter[int] = Counter()

    @property
    def live(self) -> dict[int, int]:
        """The keys that hold anything, with the number of their states."""
        return self.holding

    def get(self, state: str, key: int) -> Any:
        return self.cells[state].get(key)

    def put(self, state: str, key: int, cell: Any) -> None:
        """Cells are never changed in place: an older epoch may have them."""
        cells = self.cells[state]
        self.journals[-1].setdefault((state, key), cells.get(key))
        self._store(state, key, cell)

    def _store(self, state: str, key: int, cell: Any) -> None:
        cells = self.cells[state]
        if cell is None:
            if cells.pop(key, None) is not None:
                self.holding[key] -= 1
                if not self.holding[key]:
                    del self.holding[key]
            return
        if key not in cells:
            self.holding[key] += 1
        cells[key] = cell

    def sealed(self) -> None:
        self.journals = [*self.journals[-UNDO:], {}]

    def undo(self, back: int) -> None:
        """Undo the open epoch and `back` sealed ones."""
        for _ in range(back + 1):
            for (state, key), cell in self.journals.pop().items():
                self._store(state, key, cell)
        self.journals.append({})


class Beside(threading.Thread):
    """Reads a sealed epoch over and over while the writer goes on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.work: queue.Queue[tuple[ps.SealedReader, dict[Any, Any]] | None] = queue.Queue(1)
        self.reads = 0
        self.wrong: BaseException | None = None

    def offer(self, reader: ps.SealedReader, wanted: dict[Any, Any]) -> None:
        try:
            self.work.put_nowait((reader, wanted))
        except queue.Full:
            reader.close()

    def run(self) -> None:
        try:
            while (given := self.work.get()) is not None:
                self.read(*given)
        except BaseException as error:
            self.wrong = error

    def read(self, reader: ps.SealedReader, wanted: dict[Any, Any]) -> None:
        with reader:
            try:
                while self.work.empty():
                    for key, cells in wanted.items():
                        found = reader.get(key)
                        assert found == cells, f"a reader found {found} under {key}, not {cells}"
                        self.reads += 1
            except SnapshotTooOldError:
                pass

    def end(self) -> None:
        self.work.put(None)
        self.join()
        if self.wrong is not None:
            raise self.wrong


class Life:
    """One backend from its making to its end."""

    def __init__(
        self, rng: random.Random, folder: Path, home: str, limit_bytes: int, bounded: bool
    ) -> None:
        self.rng = rng
        self.folder = folder
        self.bounded = bounded
        self.model = Model()
        self.counts: Counter[str] = Counter()
        self.is_text = rng.random() < 0.5
        self.options: dict[str, Any] = {
            "states": STATES,
            "max_parallelism": rng.choice([8, 128]),
            "timers": True,
        }
        self.first, self.next = 0, 0  # keys that may exist: numbers from first to next
        self.text_bytes = 100.0
        self.drift = 1.0
        self.mood = ""
        extra: dict[str, Any] = {"limit_bytes": limit_bytes}
        if home == "shared":
            extra |= {"home": "shared", "path": folder / "t.table"}
        self.backend = self.made(**extra)
        self.backend.open()
        self.files: list[Path] = []
        self.epochs: list[tuple[ps.Lineage, int]] = []  # of those that can be undone: chain lengths
        self.beside = Beside()
        self.beside.start()

    def made(self, **extra: Any) -> ps.KeyedStateBackend:
        key = "string" if self.is_text else "long"
        return ps.KeyedStateBackend(key, **self.options, **extra)

    def close(self) -> None:
        self.beside.end()
        self.backend.close()

    # -- keys

    def key(self, number: int) -> Any:
        return f"user-{number * 7919 % 10**9:09d}-{'x' * (number % 24)}" if self.is_text else number

    def batch(self, backend: ps.KeyedStateBackend, numbers: Sequence[int]) -> closing[ps.KeyBatch]:
        return closing(backend.keys([self.key(number) for number in numbers]))

    def some(self, most: int) -> list[int]:
        """Numbers of keys, old ones mostly, with repetitions."""
        count = int(10 ** self.rng.uniform(0, 4)) % most + 1
        if self.mood == "grow" or self.first == self.next:
            fresh = self.rng.randint(0, count)
            self.next += fresh
            new = list(range(self.next - fresh, self.next))
        else:
            new = []
        old = self.rng.choices(range(self.first, max(self.next, self.first + 1)), k=count)
        return (new + old)[:count]

    def token(self) -> int:
        length = min(int(self.rng.expovariate(1 / self.text_bytes)), 0xFFFF)
        return self.rng.getrandbits(32) << 16 | length

    # -- what is done to keys

    def values(self) -> None:
        name = self.rng.choice(["n", "text", "text", "words", "any"])
        numbers = self.some(8000 if name != "any" else 500)
        cells: list[Any] = [self.fresh(name) for _ in numbers]
        with self.batch(self.backend, numbers) as keys:
            self.backend[name].update_all(keys, [self.written(name, cell) for cell in cells])
        for number, cell in zip(numbers, cells, strict=True):
            self.model.put(name, number, cell)

    def fresh(self, name: str) -> Any:
        if self.rng.random() < 0.1:
            return None
        if name == "text":
            return self.token()
        if name == "words":
            return [self.token() & ~0xFF00 for _ in range(self.rng.randint(0, 3))]
        return self.rng.getrandbits(40)

    def written(self, name: str, cell: Any) -> Any:
        return cell if name in ("n", "any") else shown(name, cell)

    def add(self) -> None:
        numbers = self.some(8000)
        amounts = [self.rng.getrandbits(20) for _ in numbers]
        with self.batch(self.backend, numbers) as keys:
            self.backend["n"].add(keys, amounts)
        for number, amount in zip(numbers, amounts, strict=True):
            self.model.put("n", number, (self.model.get("n", number) or 0) + amount)

    def fold(self) -> None:
        numbers = self.some(8000)
        amounts = [self.rng.getrandbits(20) for _ in numbers]
        name = self.rng.choice(["most", "mean"])
        with self.batch(self.backend, numbers) as keys:
            self.backend[name].add_all(keys, amounts)
        for number, amount in zip(numbers, amounts, strict=True):
            old = self.model.get(name, number)
            if name == "most":
                cell: Any = amount if old is None else max(old, amount)
            else:
                cell = (amount, 1) if old is None else (old[0] + amount, old[1] + 1)
            self.model.put(name, number, cell)

    def append(self) -> None:
        name = self.rng.choice(["items", "lines"])
        numbers = self.some(4000)
        given = [
            [self.rng.getrandbits(40) if name == "items" else self.token() & ~0xFF00]
            * self.rng.randint(0, 4)
            for _ in numbers
        ]
        with self.batch(self.backend, numbers) as keys:
            self.backend[name].extend(keys, [shown(name, some) for some in given])
        for number, some in zip(numbers, given, strict=True):
            if some:
                self.model.put(name, number, [*(self.model.get(name, number) or ()), *some])

    def entries(self) -> None:
        numbers = self.some(4000)
        # A few maps become large enough for trees of several levels.
        wide = 4000 if self.rng.random() < 0.2 else 12
        numbers = numbers if wide == 12 else [n for n in numbers if n % 500 == 0] or numbers[:1]
        at = [self.rng.randrange(wide) for _ in numbers]
        remove = self.rng.random() < 0.3
        tokens = [self.token() & ~0xFF00 for _ in numbers]
        with self.batch(self.backend, numbers) as keys:
            if remove:
                self.backend["entries"].remove_entries(keys, at)
            else:
                texts = [text_of(token) for token in tokens]
                self.backend["entries"].put_entries(keys, at, texts)
        for number, key, token in zip(numbers, at, tokens, strict=True):
            cell = dict(self.model.get("entries", number) or {})
            if remove:
                cell.pop(key, None)
            else:
                cell[key] = token
            self.model.put("entries", number, cell or None)

    def clear(self) -> None:
        name = self.rng.choice(list(STATES))
        numbers = self.some(4000)
        with self.batch(self.backend, numbers) as keys:
            self.backend[name].clear_all(keys)
        for number in numbers:
            self.model.put(name, number, None)

    def delete(self, numbers: Sequence[int] | None = None) -> None:
        numbers = self.some(4000) if numbers is None else numbers
        with self.batch(self.backend, numbers) as keys:
            self.backend.delete(keys)
        for number in numbers:
            for name in STATES:
                self.model.put(name, number, None)

    def scalar(self) -> None:
        for number in self.some(200):
            self.backend.set_current_key(self.key(number))
            self.counts["one at a time"] += 1
            n = self.model.get("n", number) or 0
            assert self.backend["n"].value() == n
            self.backend["n"].update(n + 1)
            self.model.put("n", number, n + 1)
            wanted = shown("items", self.model.get("items", number))
            assert self.backend["items"].get() == wanted
            self.backend["items"].add(n)
            self.model.put("items", number, [*wanted, n])
            token = self.token() & ~0xFF00
            self.backend["entries"].put(n % 12, text_of(token))
            cell = dict(self.model.get("entries", number) or {})
            self.model.put("entries", number, {**cell, n % 12: token})

    def timers(self) -> None:
        numbers = self.some(4000)
        at = [self.rng.randrange(1000) for _ in numbers]
        drop = self.rng.random() < 0.3
        with self.batch(self.backend, numbers) as keys:
            if drop:
                self.backend.delete_timers(keys, "event", at)
            else:
                self.backend.register_timers(keys, "event", at)
        for number, moment in zip(numbers, at, strict=True):
            cell = set(self.model.get("timers", number) or ())
            (cell.discard if drop else cell.add)(moment)
            self.model.put("timers", number, cell or None)

    def fire(self) -> None:
        until = self.rng.choice([50, 300, FOREVER])
        due = self.backend.due_timers("event", until, self.rng.choice([100, 5000]))
        if due is None:
            assert all(at > until for cell in self.model.cells["timers"].values() for at in cell)
            return
        numbers = {self.key(number): number for number in self.model.cells["timers"]}
        found = list(zip(due.keys.to_pylist(), due.timestamps.tolist(), strict=True))
        assert len(found) == len(set(found))
        due.fire_all()
        for key, at in found:
            cell = self.model.get("timers", numbers[key])
            assert at in cell and at <= until
            self.model.put("timers", numbers[key], cell - {at} or None)

    # -- epochs

    def seal(self) -> None:
        before = self.backend.lineage()
        assert before is not None
        lineage = before.next()
        with self.backend.seal(lineage) as snapshot:
            # From here on the epoch stands, whatever becomes of the file.
            self.model.sealed()
            path = self.folder / f"{lineage.epoch}-{lineage.id.hex()[:8]}.delta"
            self.writing(path, snapshot.write)
        self.files.append(path)
        self.epochs = [*self.epochs[-UNDO:], (lineage, len(self.files))]
        self.counts["epochs"] += 1
        if self.rng.random() < 0.3 and self.model.live:
            self.offer_reader()
        if len(self.files) > LONGEST_CHAIN:
            self.merge()

    def writing(self, path: Path, write: Callable[[Any], Any]) -> None:
        """Until there is memory for it: what was sealed must reach its file."""
        with open(path, "wb") as out:
            write(out)

    def offer_reader(self) -> None:
        numbers = self.rng.choices(list(self.model.live), k=20)
        wanted = {
            self.key(number): {
                name: shown(name, self.model.get(name, number)) for name in READ_BESIDE
            }
            for number in numbers
            # A reader sees value states; a key may have others alone.
        }
        self.beside.offer(self.backend.reader(), wanted)
        if self.beside.wrong is not None:
            raise self.beside.wrong

    def rollback(self, back: int) -> None:
        if self.backend.lineage(back) is None:
            try:
                self.backend.rollback(back)
            except LineageError:
                return
            raise AssertionError(f"rolled back over {back} epochs that are not there")
        self.backend.rollback(back)
        self.model.undo(back)
        if back:
            del self.files[len(self.files) - back :]
            self.epochs = self.epochs[: len(self.epochs) - back]
        self.counts[f"roll backs over {back}"] += 1

    def merge(self) -> None:
        """The chain's older part becomes a base; what can be undone keeps its own file."""
        some, rest = self.files[: -UNDO - 1], self.files[-UNDO - 1 :]
        if len(some) < 2:
            return
        path = self.folder / f"{uuid.uuid4().hex}.base"
        with open(path, "wb") as out:
            ps.merge_files(some, out)
        for old in some:
            old.unlink()
        self.files = [path, *rest]
        self.counts["merges"] += 1

    # -- equality

    def check(self, backend: ps.KeyedStateBackend, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), CHUNK):
            some = numbers[start : start + CHUNK]
            with self.batch(backend, some) as keys:
                for name in STATES:
                    self.check_state(backend, keys, name, some)

    def check_state(
        self, backend: ps.KeyedStateBackend, keys: ps.KeyBatch, name: str, some: Sequence[int]
    ) -> None:
        handle: Any = backend[name]
        reads = {"items": "lists", "lines": "lists", "entries": "maps", "mean": "results"}
        found = getattr(handle, reads.get(name, "values"))(keys)
        found = found if isinstance(found, list) else found.to_pylist()
        for number, value in zip(some, found, strict=True):
            wanted = shown(name, self.model.get(name, number))
            value = dict(value) if name == "entries" else value
            assert value == wanted, f"{name} of {number}: {value!r}, not {wanted!r}"

    def check_all(self, backend: ps.KeyedStateBackend) -> None:
        assert len(backend) == len(self.model.live), "number of keys"
        self.check(backend, list(self.model.live))
        gone = [number for number in self.sample(200) if number not in self.model.live]
        self.check(backend, gone)
        first = min(
            (at for cell in self.model.cells["timers"].values() for at in cell), default=None
        )
        assert backend.next_timer("event") == first

    def sample(self, count: int) -> list[int]:
        return self.rng.choices(range(max(self.next, 1)), k=count)

    def check_memory(self) -> None:
        """Against a table that holds the same and has lived for one epoch only."""
        try:
            with self.made() as fresh:
                fresh.restore(self.files)
                self.check_all(fresh)
                live = fresh.stats()
        except MemoryLimitError:
            # One limit for both: they need not fit side by side.
            self.counts["limit reached beside a fresh table"] += 1
            self.halve()
            return
        mine = self.backend.stats()
        bound = int(MOST_TIMES * live.committed_bytes) + MOST_MORE
        self.counts["memory checks"] += 1
        worst = self.counts["worst memory, percent of the bound"]
        share = mine.committed_bytes * 100 // bound
        self.counts["worst memory, percent of the bound"] = max(worst, share)
        if self.bounded:
            assert mine.committed_bytes <= bound, f"{mine} where a fresh table has {live}"

    # -- life

    def turn_mood(self) -> None:
        moods = ["grow", "grow", "steady", "steady", "shrink", "all"] if self.mood else ["grow"]
        self.mood = self.rng.choice(moods)
        self.drift = self.rng.choice([0.7, 1.0, 1.0, 1.4])
        self.counts[f"mood {self.mood}"] += 1
        if self.mood == "shrink":
            keep = self.rng.choice([0.5, 0.1, 0.0])
            self.first += int((self.next - self.first) * (1 - keep))
            self.drop_old()
        elif self.mood == "all":
            self.touch_all()

    def halve(self) -> None:
        """Make room."""
        self.mood = "shrink"
        self.first += (self.next - self.first) // 2
        self.drop_old()

    def drop_old(self) -> None:
        """Keys below `first` go, at most so many an epoch that there is memory for their undo."""
        old = [number for number in self.model.live if number < self.first]
        for start in range(0, len(old), 20_000):
            some = old[start : start + 20_000]
            self.guarded(lambda some=some: self.delete_whole(some))  # type: ignore[misc]
            self.guarded(self.seal)

    def delete_whole(self, numbers: Sequence[int]) -> None:
        self.delete(numbers)
        with self.batch(self.backend, numbers) as keys:
            for at in self.times_of(numbers):
                self.backend.delete_timers(keys, "event", [at] * len(numbers))
        for number in numbers:
            self.model.put("timers", number, None)

    def times_of(self, numbers: Sequence[int]) -> set[int]:
        return {at for number in numbers for at in self.model.get("timers", number) or ()}

    def touch_all(self) -> None:
        numbers = list(self.model.cells["n"])
        with self.batch(self.backend, numbers) as keys:
            self.backend["n"].add(keys, 1)
        for number in numbers:
            self.model.put("n", number, self.model.get("n", number) + 1)

    def guarded(self, act: Callable[[], None]) -> bool:
        """Do it; where memory does not suffice, undo the epoch, and then make room."""
        try:
            act()
        except MemoryLimitError:
            self.counts["limit reached"] += 1
            self.rollback(0)
            return False
        return True

    def steps(self) -> Iterator[Callable[[], None]]:
        acts = [
            self.values, self.values, self.add, self.fold, self.append, self.entries, self.clear,
            self.delete, self.scalar, self.timers, self.fire,
        ]  # fmt: skip
        for _ in range(self.rng.randint(1, 12)):
            yield self.rng.choice(acts)

    def epoch(self) -> None:
        self.text_bytes = min(max(self.text_bytes * self.drift, 4.0), 4000.0)
        for act in self.steps():
            self.counts[act.__name__] += 1
            if not self.guarded(act):
                self.halve()
                return
        if self.rng.random() < 0.1:
            self.rollback(self.rng.choice([0, 0, 1, 2]))
        else:
            self.guarded(self.seal)
        self.check(self.backend, self.sample(100))

    def idle(self) -> None:
        """Epochs that do next to nothing, for as long as they give memory back."""
        before = self.backend.stats().committed_bytes + 1
        while (now := self.backend.stats()).committed_bytes < before:
            before = now.committed_bytes
            # A seal looks at some thousand slots, and pages go when all have been looked at.
            for _ in range(64 + now.slots // 2000 if self.bounded else 2):
                self.guarded(self.add_one)
                self.guarded(self.seal)

    def add_one(self) -> None:
        self.next = max(self.next, 1)
        with self.batch(self.backend, [self.next - 1]) as keys:
            self.backend["n"].add(keys, 1)
        self.model.put("n", self.next - 1, (self.model.get("n", self.next - 1) or 0) + 1)

    def run(self, deadline: float, moods: int | None) -> None:
        """Until the deadline, or for so many moods."""
        done = 0
        while time.monotonic() < deadline if moods is None else done < moods:
            done += 1
            self.guarded(self.turn_mood)
            for _ in range(self.rng.randint(5, 40)):
                self.epoch()
            self.guarded(self.seal)
            self.idle()
            self.check_all(self.backend)
            self.check_memory()


def run(
    seconds: float,
    seed: int,
    homes: Sequence[str],
    limit_bytes: int,
    lives: int,
    moods: int | None = None,
) -> Counter[str]:
    """Backends one after the other for so many seconds, or each for so many moods.

    What is given back goes in steps that a short run does not wait for: the bound of memory is that
    of runs by time.
    """
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    for life in range(lives):
        left = end - time.monotonic()
        if left <= 0 and moods is None:
            break
        folder = Path(tempfile.mkdtemp(prefix="pystate-soak-"))
        one = Life(rng, folder, homes[life % len(homes)], limit_bytes, moods is None)
        try:
            one.run(time.monotonic() + left / (lives - life), moods)
        finally:
            one.close()
            shutil.rmtree(folder)
        counts["reads beside the writer"] += one.beside.reads
        worst = "worst memory, percent of the bound"
        highest = max(counts[worst], one.counts[worst])
        counts += one.counts
        counts[worst] = highest
        print(f"life {life + 1}: {dict(one.counts)}", flush=True)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--lives", type=int, default=4, help="backends one after the other")
    parser.add_argument("--homes", nargs="+", default=["heap", "shared"])
    parser.add_argument("--limit-mib", type=int, default=0, help="of each table; 0: the default")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    counts = run(given.seconds, given.seed, given.homes, given.limit_mib * MIB, given.lives)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
