"""The checkpoints that a server has open, and the epochs that its requests read.

Each request reads one epoch from its begin to its end: by a reader that is pinned to it, which all
requests for that epoch share. Requests that name no epoch have the newest, as it was a moment ago;
nobody looks for a newer one while nobody asks.

Thread safety: a `Job` belongs to the thread of the server's event loop; what it reads, it reads by
the server's threads.

Invariants
----------
1. A reader is closed when no request reads it, and it is neither the newest one nor among the few
   that were asked for last.
2. At most one refresh of a job is under way; all who wait for a newer epoch share it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from pystate.errors import CheckpointError, InUseError, InvalidArgumentError, PystateError
from pystate.query.reader import StateReader, connect_files
from pystate.query.waiting import EpochPosition, Position, not_reached_error
from pystate.redaction import logger
from pystate.serve.limits import Workers
from pystate.serve.problems import BusyError, RequestError, Veil

if TYPE_CHECKING:
    from pystate.query.operator_reader import OperatorReader

_LOG = logger("pystate.serve")
#: For so long the newest epoch counts as such before it is looked for again, and so many times that
#: long requests have the one before while it is.
REFRESH_SECONDS, _PATIENCE = 0.2, 4
#: Epochs that were asked for and are kept open, in case they are asked for again.
_PINNED = 8
Result = TypeVar("Result")


class View:
    """A job as of one epoch, for all requests that read it."""

    def __init__(self, job: Job, reader: StateReader) -> None:
        self.job, self.reader, self.epoch, self.users = job, reader, reader.epoch, 0
        self._operators: dict[str, OperatorReader] = {}

    def operator(self, uid: str) -> OperatorReader:
        """What reads an operator."""
        found = self._operators.get(uid)
        if found is None:
            found = self._operators[uid] = self.reader[uid]
        return found


class Job:
    """A checkpoint that is open, under the name by which clients know it."""

    def __init__(
        self,
        name: str,
        reader: StateReader,
        workers: Workers,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self.name, self.location, self.reader = name, reader.location, reader
        self._workers, self._refresh_seconds = workers, refresh_seconds
        self._is_local = "://" not in reader.location or reader.location.startswith("file:")
        self._newest: View | None = None
        self._looked_at = float("-inf")
        self._refreshing: asyncio.Future[View] | None = None
        self._pinned: OrderedDict[int, View] = OrderedDict()
        self._told = ""
        self.closed = False

    @asynccontextmanager
    async def reading(
        self,
        epoch: int | None,
        least: int | None,
        seconds: float,
        read: Callable[[View], Result],
        *,
        at_hand: Callable[[View], Result | None] | None = None,
    ) -> AsyncIterator[tuple[View, Result]]:
        """Read an epoch; the view is kept until the block ends.

        It is read in a thread, unless what `at_hand` gives, which waits for nothing, is there.

        The epoch is that one, or else the newest, which is waited for if it is before `least`. It
        is the next one if a running job has removed its files meanwhile, unless it was asked for.
        """
        view = await self._entered(epoch, least, seconds)
        # In an object store a look-up waits for requests, which others need not wait for, too.
        is_quick = at_hand is not None and self._is_local
        run = self._workers.run_soon if is_quick else self._workers.run
        try:
            try:
                # To wake a thread, and be woken by it, takes longer than a look-up.
                result = None if at_hand is None else at_hand(view)
                if result is None:
                    result = await run(read, view)
            except CheckpointError:
                if epoch is None:
                    await self.refreshed()
                newer = self._newest
                if epoch is not None or newer is None or newer.epoch == view.epoch:
                    raise
                newer.users += 1
                self._leave(view)
                view = newer
                result = await run(read, view)
            yield view, result
        finally:
            self._leave(view)

    async def newest(self) -> View:
        """The newest epoch, as it was a moment ago."""
        view, age = self._newest, time.monotonic() - self._looked_at
        if view is None or age > _PATIENCE * self._refresh_seconds:
            return await self.refreshed()
        if age > self._refresh_seconds:
            self._begin_refresh()
        return view

    async def reached(self, wanted: Position, seconds: float) -> View:
        """The newest epoch once it has what is wanted; `NotReachedError` if not in time."""
        end, known = time.monotonic() + seconds, 0
        while True:
            view = await self.refreshed()
            if view.epoch > known:
                place = view.reader._place
                manifest = place.view.manifest
                if await self._workers.run(wanted.is_in, place.connection, manifest, known):
                    return view
                known = view.epoch
            left = end - time.monotonic()
            if self.closed:
                raise BusyError("the server is stopping: ask again")
            if left <= 0:
                what = f"job {self.name!r}"
                raise not_reached_error(what, wanted, f"{seconds:g} seconds", view.epoch)
            await asyncio.sleep(min(self._refresh_seconds, left))

    async def refreshed(self) -> View:
        """Look for the newest epoch."""
        return await asyncio.shield(self._begin_refresh())

    def _begin_refresh(self) -> asyncio.Future[View]:
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
            self._refreshing.add_done_callback(self._end_refresh)
        return self._refreshing

    def _end_refresh(self, done: asyncio.Future[View]) -> None:
        self._refreshing = None
        if not done.cancelled() and (error := done.exception()) is not None:
            # Whoever waits gets it, too; here it is said once.
            if str(error) != self._told:
                _LOG.warning("job %s: no newer epoch is found: %s", self.name, error)
            self._told = str(error)
            if isinstance(error, InUseError):
                self._forget_pinned()
        else:
            self._told = ""

    async def _refresh(self) -> View:
        before = self._newest

        def look() -> View | None:
            self.reader.refresh()
            # A repair may have made another epoch of the same number.
            manifest = self.reader._place.view.manifest
            if before is not None and before.reader._place.view.manifest is manifest:
                return None
            return View(self, self.reader.at(manifest.epoch))

        found = await self._workers.run(look)
        self._looked_at = time.monotonic()
        if found is None:
            assert before is not None
            return before
        self._newest = found
        if before is not None and not before.users:
            before.reader.close()
        if before is not None and found.epoch <= before.epoch:
            self._forget_pinned()
        return found

    def _forget_pinned(self) -> None:
        """Keep no epoch open: after a repair there may be others of the same numbers."""
        pinned, self._pinned = self._pinned, OrderedDict()
        for view in pinned.values():
            if not view.users:
                view.reader.close()

    async def _entered(self, epoch: int | None, least: int | None, seconds: float) -> View:
        if epoch is not None and least is not None:
            raise InvalidArgumentError("give epoch= or min_epoch=, not both")
        try:
            view = await self.newest()
        except PystateError:
            # An epoch that is known is read also while the newest cannot be.
            if epoch is None or self._newest is None:
                raise
            view = self._newest
        if epoch is not None and epoch != view.epoch:
            view = await self._pinned_at(epoch)
        else:
            if least is not None and least > view.epoch:
                await self.reached(EpochPosition(least), seconds)
            # Since what was waited for came there may be a newer one, and that one be closed.
            assert self._newest is not None
            view = self._newest
        view.users += 1
        return view

    async def _pinned_at(self, epoch: int) -> View:
        view = self._pinned.get(epoch)
        if view is None:
            view = await self._workers.run(lambda: View(self, self.reader.at(epoch)))
            raced = self._pinned.get(epoch)
            if raced is not None:
                view.reader.close()
                view = raced
            self._pinned[epoch] = view
        self._pinned.move_to_end(epoch)
        for each in list(self._pinned.values()):
            if len(self._pinned) <= _PINNED:
                break
            if not each.users and each is not view:
                del self._pinned[each.epoch]
                each.reader.close()
        return view

    def _leave(self, view: View) -> None:
        view.users -= 1
        if not view.users and view is not self._newest and self._pinned.get(view.epoch) is not view:
            view.reader.close()

    def close(self) -> None:
        """Close the reader; requests that are under way fail."""
        self.closed = True
        self.reader.close()


class Jobs(Mapping[str, Job]):
    """All jobs of a server, by name."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self.veil = Veil({job.location: f"job {job.name!r}" for job in jobs})

    def __getitem__(self, name: str) -> Job:
        try:
            return self._jobs[name]
        except KeyError:
            known = ", ".join(map(repr, self._jobs))
            raise RequestError(404, f"there is no job {name!r:.80}; there is {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def close(self) -> None:
        """Close all readers."""
        for job in self._jobs.values():
            job.close()


def named_locations(locations: list[str]) -> dict[str, str]:
    """Places of checkpoints by the names of their jobs: ``NAME=LOCATION``, or its last part."""
    found: dict[str, str] = {}
    for given in locations:
        name, sign, location = given.partition("=")
        if not sign or "/" in name:
            location = given
            whole = location if "://" in location else os.path.abspath(location)
            name = whole.rstrip("/").rpartition("/")[2] if location else ""
        if not name or not location or "/" in name or name in (".", ".."):
            raise InvalidArgumentError(
                f"serve: {given!r} does not say what the job is called: write NAME=LOCATION"
            )
        if name in found:
            raise InvalidArgumentError(
                f"serve: two jobs would be called {name!r}, of {found[name]} and of {location}: "
                "name them, NAME=LOCATION"
            )
        found[name] = location
    return found


def open_jobs(
    locations: Mapping[str, str], workers: Workers, *, cache_bytes: int, refresh_seconds: float
) -> Jobs:
    """Open checkpoints, by the names of their jobs."""
    jobs: list[Job] = []
    try:
        for name, location in locations.items():
            reader = connect_files(location, cache_bytes=cache_bytes)
            jobs.append(Job(name, reader, workers, refresh_seconds))
    except BaseException:
        for job in jobs:
            job.close()
        raise
    return Jobs(jobs)
