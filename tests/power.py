"""What a machine may show of a folder after its power failed, at any moment of what was done there.

A `Disk` records each change of names and each sync of a file or folder. POSIX promises only what
was synced: of all other changes since, any may be on the disk and any may not, in whatever order
they were made, and a file that was not synced may be empty, cut off or full of zeros. `images` says
what there may be. The first of each moment, in which everything is kept, is what the end of a
process leaves.
"""

from __future__ import annotations

import builtins
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.work import CutError

_FOLDER = -1
_TORN = ("empty", "cut", "zeros")
_LINK = os.link
#: So many of the newest unsynced changes are left out, or kept, one by one.
_SINGLE = 6

#: A name: its folder's path and its own.
_Name = tuple[str, str]
_Tree = dict[str, dict[str, int]]


class Change(NamedTuple):
    """Names that change together: the file or folder that each names then; None for nothing."""

    names: tuple[tuple[_Name, int | None], ...]


class Synced(NamedTuple):
    """A file's content is on the disk, or if `folder` is not None that folder's names."""

    file: int
    folder: str | None = None


class Note(NamedTuple):
    """What was promised to somebody by then."""

    text: str
    number: int


class Image(NamedTuple):
    """A folder that may be found after a failure."""

    moment: int
    """How many steps were done."""
    how: str
    """Which of the unsynced changes it has."""
    notes: tuple[Note, ...]
    tree: _Tree
    torn: dict[int, str]
    last: str
    """The last step before the failure."""

    def promised(self, text: str) -> int:
        """The largest number that was noted under a text; 0 for none."""
        return max((note.number for note in self.notes if note.text == text), default=0)


class Disk:
    """A folder whose changes are recorded.

    Parameters
    ----------
    root : Path
        The folder; all that it holds is on the disk.
    pool : Path
        A folder beside it, on the same file system, which keeps the content of all files.
    """

    def __init__(self, root: Path, pool: Path) -> None:
        self.root, self.pool = str(root), pool
        self.log: list[Change | Synced | Note] = []
        pool.mkdir(parents=True)
        self._lock = threading.RLock()
        self._left: int | None = None
        self._files = 0
        self._now: dict[_Name, int] = {}
        for parent, folders, names in os.walk(root):
            for name in folders:
                self._now[self._name(os.path.join(parent, name))] = _FOLDER
            for name in names:
                path = os.path.join(parent, name)
                self._now[self._name(path)] = self._new_file(path)
        self._before = dict(self._now)
        self._old_files = self._files

    def kill_after(self, changes: int | None) -> None:
        """Let the process end after so many changes, by `CutError`; None for never."""
        self._left = changes

    def note(self, text: str, number: int = 1) -> None:
        """Record that something was promised."""
        self.log.append(Note(text, number))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what this process does within the block."""
        with (
            mock.patch.multiple(
                os,
                link=self._watched(os.link, self._linked),
                unlink=self._watched(os.unlink, self._unlinked),
                remove=self._watched(os.remove, self._unlinked),
                rmdir=self._watched(os.rmdir, self._unlinked),
                replace=self._watched(os.replace, self._renamed),
                rename=self._watched(os.rename, self._renamed),
                mkdir=self._watched(os.mkdir, self._made),
                fsync=self._watched(os.fsync, self._synced),
            ),
            mock.patch.object(builtins, "open", self._opening(builtins.open)),
        ):
            yield

    # ---- recording ---------------------------------------------------------------------------

    def _watched(self, real: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._step()
                result = real(*arguments, **options)
                note(*arguments, **options)
            return result

        return call

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if "x" not in mode:
                assert "r" in mode or not self._is_inside(path), f"{path} is opened to be changed"
                return real(path, mode, *arguments, **options)
            with self._lock:
                self._step()
                file = real(path, mode, *arguments, **options)
                if self._is_inside(path):
                    self._change({self._name(path): self._new_file(path)})
            return file

        return opened

    def _step(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise CutError
            self._left -= 1

    def _new_file(self, path: Any) -> int:
        # Another name of the same file, which has at the end what was written into it.
        _LINK(path, self.pool / str(self._files))
        self._files += 1
        return self._files - 1

    def _is_inside(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.path.abspath(path).startswith(
            f"{self.root}/"
        )

    def _name(self, path: Any, dir_fd: int | None = None) -> _Name:
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        folder, name = os.path.split(os.path.relpath(os.path.abspath(path), self.root))
        return folder, name

    def _change(self, names: dict[_Name, int | None]) -> None:
        self.log.append(Change(tuple(names.items())))
        for name, file in names.items():
            if file is None:
                del self._now[name]
            else:
                self._now[name] = file

    def _linked(self, source: Any, path: Any) -> None:
        if self._is_inside(path):
            self._change({self._name(path): self._now[self._name(source)]})

    def _unlinked(self, path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None or self._is_inside(path):
            name = self._name(path, dir_fd)
            if name in self._now:
                self._change({name: None})

    def _renamed(self, source: Any, path: Any) -> None:
        if self._is_inside(path):
            before = self._name(source)
            file = self._now[before]
            assert file != _FOLDER, "folders keep their names"
            self._change({before: None, self._name(path): file})

    def _made(self, path: Any, *_: Any, **__: Any) -> None:
        if self._is_inside(path):
            self._change({self._name(path): _FOLDER})

    def _synced(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path == self.root:
            self.log.append(Synced(_FOLDER, ""))
        elif self._is_inside(path):
            name = self._name(path)
            folder = os.path.join(*name)
            is_folder = self._now[name] == _FOLDER
            self.log.append(Synced(self._now[name], folder if is_folder else None))

    # ---- what may be there -------------------------------------------------------------------

    def images(self, seed: int, some: int = 2) -> list[Image]:
        """What may be found, at whichever moment the power fails; each once, at its last moment.

        Parameters
        ----------
        seed : int
            Which changes are left out, and how files are torn.
        some : int
            How many random choices of unsynced changes there are at each moment.
        """
        rng = random.Random(seed)
        found: dict[object, Image] = {}
        kept, pending = dict(self._before), []
        synced = set(range(self._old_files))
        notes: list[Note] = []
        for moment, step in enumerate([None, *self.log]):
            if isinstance(step, Note):
                notes.append(step)
            elif isinstance(step, Change):
                pending.append(step)
            elif isinstance(step, Synced) and step.folder is None:
                synced.add(step.file)
            elif isinstance(step, Synced):
                flushed = [c for c in pending if any(n[0] == step.folder for n, _ in c.names)]
                pending = [c for c in pending if c not in flushed]
                for change in flushed:
                    _apply(kept, change)
            for how, chosen in _choices(pending, rng, some):
                names = dict(kept)
                for change in chosen:
                    _apply(names, change)
                tree = _reachable(names)
                torn: dict[int, str] = {}
                if how != "all":
                    for file in sorted({f for names in tree.values() for f in names.values()}):
                        if file != _FOLDER and file not in synced:
                            torn[file] = rng.choice(_TORN)
                image = Image(moment, how, tuple(notes), tree, torn, str(step))
                found[_looks(image)] = image
        return list(found.values())

    def build(self, image: Image, root: Path) -> None:
        """Make an image's folder."""
        root.mkdir(parents=True)
        for folder, names in sorted(image.tree.items()):
            for name, file in names.items():
                path = root / folder / name
                if file == _FOLDER:
                    path.mkdir()
                    continue
                origin = self.pool / str(file)
                how = image.torn.get(file)
                if how is None:
                    _LINK(origin, path)
                    continue
                size = origin.stat().st_size
                data = {"empty": b"", "cut": origin.read_bytes()[: size // 2], "zeros": bytes(size)}
                path.write_bytes(data[how])


def _apply(names: dict[_Name, int], change: Change) -> None:
    for name, file in change.names:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _choices(
    pending: Sequence[Change], rng: random.Random, some: int
) -> Iterator[tuple[str, Sequence[Change]]]:
    """Which of the unsynced changes are on the disk."""
    yield "all", pending
    yield "all, torn", pending
    if not pending:
        return
    yield "none", ()
    for change in pending[-_SINGLE:]:
        yield "one is missing", [other for other in pending if other is not change]
        yield "only one", [change]
    for _ in range(some):
        yield "some", [change for change in pending if rng.random() < 0.5]


def _reachable(names: dict[_Name, int]) -> _Tree:
    """The folders below the root, and what is in them."""
    tree: _Tree = {}
    for (folder, name), file in names.items():
        tree.setdefault(folder, {})[name] = file
    found: _Tree = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        found[folder] = tree.get(folder, {})
        folders += [
            os.path.join(folder, name) for name, file in found[folder].items() if file == _FOLDER
        ]
    return found


def _looks(image: Image) -> object:
    """What distinguishes images: everything but the leftovers of writes, and empty folders."""
    return frozenset(
        (folder, name, file, image.torn.get(file))
        for folder, names in image.tree.items()
        for name, file in names.items()
        if file != _FOLDER and not name.endswith(".tmp")
    )
