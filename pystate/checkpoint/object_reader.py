"""A binary file whose bytes are fetched over a network as they are read.

Thread safety: an `ObjectReader` belongs to one thread at a time.

Invariants
----------
1. At most one window of the file is in memory, of `_MOST` bytes.
2. Who reads on where the last window has ended gets a larger one each time: a scan takes few
   requests, and jumps waste little.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ObjectReader"]

_LEAST, _MOST = 1 << 20, 4 << 20


class ObjectReader(io.RawIOBase):
    """A file that is read by ranges.

    Parameters
    ----------
    name : str
        For messages.
    size_bytes : int
        The size of the file.
    fetch : callable
        Returns the bytes from an offset up to another.
    """

    def __init__(self, name: str, size_bytes: int, fetch: Callable[[int, int], memoryview]) -> None:
        self.name = name
        self._size = size_bytes
        self._fetch = fetch
        self._at = 0
        self._window = memoryview(b"")
        self._start = 0
        self._ahead = _LEAST

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position; nothing is fetched."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: negative position {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer, up to the end of the file."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size - self._at))
        done = 0
        while done < wanted:
            piece = self._piece(wanted - done)
            view[done : done + len(piece)] = piece
            done += len(piece)
            self._at += len(piece)
        return done

    def readall(self) -> bytes:
        """Return the rest of the file."""
        return self.read(max(0, self._size - self._at)) or b""

    def _piece(self, most: int) -> memoryview:
        """Up to `most` bytes from the position on, and at least one."""
        inside = self._at - self._start
        if not 0 <= inside < len(self._window):
            goes_on = len(self._window) > 0 and inside == len(self._window)
            self._ahead = min(2 * self._ahead, _MOST) if goes_on else _LEAST
            # Behind the footer is nothing to read ahead: what is before it is read next.
            self._start = max(0, min(self._at, self._size - self._ahead))
            end = min(self._size, self._start + self._ahead)
            self._window = memoryview(b"")
            self._window = self._fetch(self._start, end)
            if len(self._window) != end - self._start:
                self._window = memoryview(b"")
                raise OSError(f"{self.name}: the store returned too few bytes at {self._start}")
            inside = self._at - self._start
        return self._window[inside : inside + most]
