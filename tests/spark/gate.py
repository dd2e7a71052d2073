"""Users' functions held up in a worker until a test lets them go on: workers import this module."""

from __future__ import annotations

from pathlib import Path

from .conftest import wait_for


class Gate:
    """A folder that says of each place of a function whether it is closed, and was reached since.

    As a context manager it ends with all places open.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def close(self, *places: str) -> None:
        """Hold up whoever comes to one of the places."""
        for place in places:
            (self._folder / f"{place}.reached").unlink(missing_ok=True)
            (self._folder / f"{place}.closed").touch()

    def open(self) -> None:
        """Let everybody go on."""
        for path in self._folder.glob("*.closed"):
            path.unlink()

    def is_reached(self, place: str) -> bool:
        """Whether somebody was held up at a place."""
        return (self._folder / f"{place}.reached").exists()

    def wait_until_reached(self, place: str) -> None:
        """Wait until somebody is held up at a place."""
        wait_for(lambda: self.is_reached(place), f"somebody at {place!r}")

    def pass_through(self, place: str) -> None:
        """In a worker: go on where the place is open, or as soon as it is."""
        closed = self._folder / f"{place}.closed"
        if closed.exists():
            (self._folder / f"{place}.reached").touch()
            wait_for(lambda: not closed.exists(), "leave to go on", 300)
