"""`pystate.connect`: a checkpoint's state, read while its job goes on, or when it has ended.

Nothing is asked of the job. Its state lies in sorted, checksummed files that never change, and a
manifest names those of an epoch. So a reader is consistent at one epoch over all operators, waits
for nobody, and nobody waits for it.

Thread safety: any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pystate.base.arguments import integer, text
from pystate.checkpoint.manifest import Manifest
from pystate.processor.epochs import storage_at
from pystate.query.connection import Connection, Place
from pystate.query.follow import EpochChanges, Follower, changes_until, follow
from pystate.query.lease import DURATION as LEASED
from pystate.query.lease import Lease, LeaseFiles
from pystate.query.operator_reader import OperatorReader
from pystate.query.sql.statement import MEMORY_BYTES, THREADS, TIMEOUT, Limits
from pystate.query.waiting import parse_position, wait
from pystate.types.durations import Duration

if TYPE_CHECKING:
    from typing_extensions import Self

_INSTANT: pa.DataType = pa.timestamp("ms", "UTC")
_EPOCHS: dict[str, pa.DataType] = {
    "epoch": pa.int64(),
    "published": _INSTANT,
    "processing_time": _INSTANT,
    "watermark": _INSTANT,
    "operators": pa.int32(),
    "files": pa.int64(),
    "size_bytes": pa.int64(),
    "query_id": pa.string(),
    "batch_id": pa.int64(),
    "run_key": pa.string(),
    "library": pa.string(),
}


class StateReader:
    """Reads a checkpoint as of one epoch; `pystate.connect` makes it.

    ``reader["uid"]`` reads an operator. All of a reader read the epoch that `epoch` says, until
    `refresh` moves them to the newest one. Where a running job has removed the files of that epoch
    while they are read, the reader moves to the newest one by itself, once in a call.
    """

    def __init__(self, place: Place, owns: bool) -> None:
        self._place, self._owns = place, owns

    @property
    def location(self) -> str:
        """The checkpoint."""
        return self._place.connection.storage.uri

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._place.view.epoch

    @property
    def uids(self) -> tuple[str, ...]:
        """The operators of the epoch."""
        return self._place.view.uids

    def epochs(self) -> pa.Table:
        """List the epochs that are retained, and so can be read, the oldest first.

        Returns
        -------
        pyarrow.Table
            With the columns ``epoch``, ``published``, ``processing_time``, ``watermark`` (the
            smallest one of the operators), ``operators``, ``files``, ``size_bytes`` (of all its
            files), ``query_id``, ``batch_id`` and ``run_key`` (what the epoch has processed), and
            ``library``.
        """
        self._place.check()
        rows = [_described(manifest) for manifest in self._place.connection.retained()]
        return pa.Table.from_pylist(rows, pa.schema(_EPOCHS))

    def refresh(self) -> int:
        """Move to the newest epoch, and return its number; a pinned reader stays where it is.

        Only what is new is read. Whatever is read meanwhile goes on in the epoch that it began
        with.

        Raises
        ------
        InUseError
            The checkpoint is being repaired.
        CheckpointError, CorruptFileError, NewerFormatError
            The newest manifest is lost, damaged, or of a later version of pystate.
        """
        return self._place.refresh().epoch

    def wait_for(
        self,
        *,
        epoch: int | None = None,
        position: Any = None,
        timeout: Duration = "10 seconds",
    ) -> int:
        """Move to the newest epoch once it has what somebody wrote, and return its number.

        Parameters
        ----------
        epoch : int, optional
            An epoch, such as `Store.checkpoint` returns.
        position : optional
            Instead: the key of a run; or ``(query id, batch id)`` of a stream, or its progress, a
            mapping with ``id`` and ``batchId``; or how far its source has been read at least, in
            the form of its ``endOffset``, such as ``{"topic": {"0": 1234}}`` for Kafka, where 1234
            is the offset behind the last record. Of several sources a list, with None for those
            that do not matter.
        timeout : str, timedelta or int
            How long to wait, such as "10 seconds"; an integer is in milliseconds.

        Returns
        -------
        int
            The epoch, which is that of the reader now, and may be a later one.

        Raises
        ------
        NotReachedError
            There was no such epoch in time.
        InvalidArgumentError
            The position cannot be compared with that of the stream; or the reader is pinned to an
            epoch that does not have it.
        """
        self._place.check()
        return wait(self._place, parse_position(epoch, position), timeout)

    def at(self, epoch: int) -> StateReader:
        """Return a reader that is pinned to an epoch; it shares open files with this one.

        Parameters
        ----------
        epoch : int
            A retained epoch.

        Returns
        -------
        StateReader
            It is closed with this one, and may be closed before.

        Raises
        ------
        CheckpointError
            The epoch is not retained.
        """
        connection = self._place.connection
        self._place.check()
        number = integer(epoch, "at: epoch", least=1)
        here = self._place.view.manifest
        manifest = here if here.epoch == number else connection.manifest(number)
        return StateReader(Place(connection, manifest, pinned=True), owns=False)

    def changes(self, since: int, *, uids: list[str] | None = None) -> EpochChanges:
        """Find what has changed since an epoch, up to that of the reader.

        Parameters
        ----------
        since : int
            A retained epoch; 0 for the empty state before the first, of whatever the reader's epoch
            then has.
        uids : list of str, optional
            Only these operators; by default all.

        Returns
        -------
        EpochChanges
            Pairs of uid and batch: a row per key whose states differ, as `pystate.changes` has it.

        Raises
        ------
        RetiredEpochError
            The epoch is not retained any more: it says from which one to begin anew.
        InvalidArgumentError
            The epoch is after that of the reader.

        Examples
        --------
        >>> import tempfile
        >>> import pyarrow as pa, pystate as ps
        >>> folder = tempfile.mkdtemp()
        >>> with ps.open(folder, key="string", states={"n": ps.ValueState("long")}) as store:
        ...     for number in (1, 2):
        ...         store["n"].update_all(store.keys(["a"]), pa.array([number]))
        ...         store.checkpoint()
        1
        2
        >>> with ps.connect(folder) as reader:
        ...     reader.changes(since=1).read("embedded").to_pylist()
        [{'key': 'a', 'change': 'put', 'before': {'n': 1}, 'after': {'n': 2}}]
        """
        place = self._place
        place.check()
        storage, newer = place.connection.storage, place.view.manifest
        return changes_until(storage, since, newer, uids=uids, check=place.check)

    def follow(
        self,
        since: int | None = None,
        *,
        uids: list[str] | None = None,
        lease: bool | Duration = False,
        poll: Duration | None = None,
    ) -> Follower:
        """Follow the epochs that are published, with what each of them has changed.

        Parameters
        ----------
        since : int, optional
            The epoch whose state is known: the first one that is given is the next. By default that
            of the reader, so that what is read of it, and what is followed, are all.
        uids : list of str, optional
            Only these operators; by default all, now and later.
        lease : bool, str, timedelta or int
            Whether the job is asked to keep the epochs that are still to come, for a consumer that
            may be slower than it retires them; or for how long, if the consumer dies.
        poll : str, timedelta or int, optional
            How often it is looked for the next epoch, 10 ms to a minute. By default every 50 ms,
            and every second in an object store: each look is a request there.

        Returns
        -------
        Follower
            Iterating over it gives an `EpochChanges` for each epoch, one after the other, and waits
            for the next. It ends when it is stopped, or the reader is closed.

        Raises
        ------
        RetiredEpochError
            The epoch is not retained any more: it says from which one to begin anew. Iterating
            raises it, too, if the job retires epochs before they were read.
        InvalidArgumentError
            There is no such epoch yet.
        """
        place = self._place
        place.check()
        begin = place.view.manifest if since is None else since
        storage, check = place.connection.storage, place.check
        follower = follow(storage, begin, uids=uids, lease=lease, poll=poll, check=check)
        place.followers.add(follower)
        return follower

    def lease(self, duration: Duration = LEASED) -> Lease:
        """Ask the job to keep the reader's epoch, and all later ones, for as long as it is held.

        Parameters
        ----------
        duration : str, timedelta or int
            For how long it goes on when this process has died, a second to a day.

        Returns
        -------
        Lease
            Renewed until its `Lease.close`, or the end of its ``with`` block. The job keeps an
            epoch for ``Job(max_lease=...)`` at most.

        Raises
        ------
        RetiredEpochError
            The epoch is retired already.
        CheckpointError
            The checkpoint cannot be written.
        """
        self._place.check()
        return Lease(LeaseFiles(self._place.connection.storage), self.epoch, duration)

    def sql(
        self,
        query: str,
        parameters: list[Any] | Mapping[str, Any] | None = None,
        *,
        timeout: Duration = TIMEOUT,
        memory_bytes: int = MEMORY_BYTES,
        threads: int = THREADS,
        isolated: bool = False,
    ) -> pa.Table:
        """Run a SELECT statement over the state of the epoch.

        Parameters
        ----------
        query : str
            The statement, in DuckDB's SQL. Each operator is a table that has the name of its uid,
            ``"order totals"`` in double quotes where that is no plain word. ``<uid>__<state>`` has
            the elements of a list or map, ``<uid>__timers`` the timers, and ``epochs`` what
            `epochs` gives; `sql_tables` lists them.
        parameters : list or mapping, optional
            Values for ``?``, or for ``$name``.
        timeout : str, timedelta or int
            How long the statement may take, such as ``"10 s"``, or milliseconds.
        memory_bytes : int
            How much memory DuckDB takes for it at most, at least 16 MiB.
        threads : int
            How many threads DuckDB computes with at most.
        isolated : bool
            Whether the statement runs in a process of its own, to which the system gives no more
            memory: for statements of people who are not trusted. DuckDB counts its tables, but not
            each text or list that a function makes. It takes half a second longer.

        Returns
        -------
        pyarrow.Table
            The rows, all of one epoch.

        Raises
        ------
        QueryError
            The statement is wrong, or it is more than one SELECT, or reads what is not there.
        QueryTimeoutError
            It took longer than it may.
        MemoryLimitError
            It needs more memory than it may have.
        MissingPackageError
            DuckDB is not installed: it is in the extra ``sql``.
        CheckpointError, CorruptFileError, NewerFormatError
            As for `OperatorReader.scan`.

        Notes
        -----
        Only tables that the statement names are read. Where its conditions give the key, by ``=``
        or ``IN``, keys are looked up; else the table is scanned, and the conditions that DuckDB
        hands on are applied to each part. Objects are pickled bytes, and are never unpickled.

        The statement reaches no file, network, extension, setting or variable of the program.

        Examples
        --------
        >>> import tempfile
        >>> import pyarrow as pa, pystate as ps
        >>> folder = tempfile.mkdtemp()
        >>> with ps.open(folder, key="string", states={"n": ps.ValueState("long")}) as store:
        ...     store["n"].update_all(store.keys(["a", "b"]), pa.array([1, 2]))
        ...     store.checkpoint()
        1
        >>> with ps.connect(folder) as reader:
        ...     reader.sql("select n + 1 as more from embedded where key = ?", ["b"]).to_pylist()
        [{'more': 3}]
        """
        from pystate.query.sql.execution import read_sql

        limits = Limits.of(timeout, memory_bytes, threads)
        rows: pa.Table = self._place.read(
            lambda view: read_sql(view, self.epochs, query, parameters, limits, isolated)
        )
        return rows

    def scan_sql(
        self,
        query: str,
        parameters: list[Any] | Mapping[str, Any] | None = None,
        *,
        timeout: Duration = TIMEOUT,
        memory_bytes: int = MEMORY_BYTES,
        threads: int = THREADS,
        isolated: bool = False,
    ) -> pa.RecordBatchReader:
        """Run a SELECT statement, and read its rows as they are computed.

        Parameters
        ----------
        query, parameters, timeout, memory_bytes, threads, isolated
            As for `sql`; the time counts until the last row is read.

        Returns
        -------
        pyarrow.RecordBatchReader
            The rows of `sql`, of the epoch at which the reader stands now. It can be used once, and
            ends the statement when it is closed.

        Raises
        ------
        QueryError, QueryTimeoutError, MemoryLimitError, MissingPackageError, CheckpointError
            As for `sql`, also while rows are read.
        """
        from pystate.query.sql.execution import scan_sql

        limits, place = Limits.of(timeout, memory_bytes, threads), self._place
        schema, batches = place.read(
            lambda view: scan_sql(
                view, self.epochs, query, parameters, limits, isolated, place.cut_short
            )
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def sql_tables(self) -> pa.Table:
        """List the tables that statements may name.

        Returns
        -------
        pyarrow.Table
            A row for each column of each table: ``table``, ``column``, ``type`` (in SQL), and
            ``holds``, what the rows of the table are.

        Raises
        ------
        MissingPackageError
            DuckDB is not installed: it is in the extra ``sql``.
        CheckpointError
            Files of the epoch are gone.
        """
        from pystate.query.sql.execution import list_tables

        tables: pa.Table = self._place.read(lambda view: list_tables(view, self.epochs))
        return tables

    def close(self) -> None:
        """Close the reader; does nothing the second time."""
        self._place.close()
        if self._owns:
            self._place.connection.close()

    def __getitem__(self, uid: str) -> OperatorReader:
        self._place.check()
        self._place.view.operator(text(uid, "reader[uid]: uid"))
        return OperatorReader(self._place, uid)

    def __contains__(self, uid: object) -> bool:
        return uid in self.uids

    def __iter__(self) -> Iterator[str]:
        return iter(self.uids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StateReader of {self.location} at epoch {self.epoch}>"


def connect_files(
    location: str | os.PathLike[str], *, epoch: int | None = None, cache_bytes: int = 64 << 20
) -> StateReader:
    """Read the state of a checkpoint, or of a savepoint, as `pystate.connect`."""
    integer(cache_bytes, "connect: cache_bytes", least=0)
    storage = storage_at(location, "connect")
    connection = Connection(storage, cache_bytes)
    pinned = epoch is not None
    manifest = connection.newest() if epoch is None else connection.manifest(epoch)
    return StateReader(Place(connection, manifest, pinned=pinned), owns=True)


def _described(manifest: Manifest) -> dict[str, Any]:
    files = {ref.path: ref.file_bytes for op in manifest.operators for ref in op.files}
    return {
        "epoch": manifest.epoch,
        "published": manifest.created_ms,
        "processing_time": manifest.processing_time_ms,
        "watermark": manifest.watermark_ms,
        "operators": len(manifest.operators),
        "files": len(files),
        "size_bytes": sum(files.values()),
        "query_id": manifest.query_id,
        "batch_id": manifest.batch_id,
        "run_key": manifest.run_key,
        "library": manifest.library,
    }
