"""`pystate.connect`: a reader of state, wherever the state is.

Thread safety: a function without state.
"""

from __future__ import annotations

import os

from pystate.base.arguments import integer
from pystate.errors import InvalidArgumentError
from pystate.query.reader import StateReader, connect_files
from pystate.redaction import redacted

_SERVERS = ("http://", "https://")


def connect(
    location: str | os.PathLike[str],
    *,
    epoch: int | None = None,
    cache_bytes: int = 64 << 20,
    token: str | None = None,
) -> StateReader:
    """Read the state of a checkpoint, whether its job runs or not.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job or store, or a savepoint: a folder, or a URL in an object store. Or
        a job that `pystate serve` serves, ``http://HOST:PORT/JOB``, whose name may be left out if
        it is the only one.
    epoch : int, optional
        A retained epoch, which is then read all the time; by default the newest one, until
        `StateReader.refresh`.
    cache_bytes : int
        The most memory that is kept of what was read of files; a server has its own.
    token : str, optional
        What a server asks for, if the location is one.

    Returns
    -------
    StateReader

    Raises
    ------
    CheckpointError
        There is no checkpoint, it has no epoch, or not that one. `NewerFormatError` if a later
        version of pystate has written it, `CorruptFileError` if its manifest is damaged.
    InUseError
        The checkpoint is being repaired.

    Notes
    -----
    Nothing is locked, and nothing is written. Opening reads a manifest; files are opened when they
    are first asked.

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
    ...     reader.epoch, reader["embedded"].get(["b", "c"]).to_pylist()
    (1, [{'key': 'b', 'n': 2}, {'key': 'c', 'n': None}])
    """
    if isinstance(location, str) and location.lower().startswith(_SERVERS):
        integer(cache_bytes, "connect: cache_bytes", least=0)
        if epoch is not None:
            integer(epoch, "connect: epoch", least=1)
        from pystate.query.remote import connect_remote

        return connect_remote(location, epoch, token)
    if token is not None:
        raise InvalidArgumentError(
            f"connect: a token is for a server, http://... or https://..., and "
            f"{redacted(str(location))} is none: leave it out"
        )
    return connect_files(location, epoch=epoch, cache_bytes=cache_bytes)
