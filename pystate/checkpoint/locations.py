"""Where checkpoints are: from a path or URL to a storage.

Thread safety: the functions keep no state.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from pystate.checkpoint.object_storage import SCHEMES, ObjectStorage, refuse_credentials
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.errors import InvalidArgumentError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def open_storage(location: str | os.PathLike[str]) -> CheckpointStorage:
    """Return the storage behind a checkpoint's location.

    Parameters
    ----------
    location : str or path
        A folder, as a path or as a ``file:`` URI; or the URL of a prefix in an object store:
        ``s3://bucket/prefix``, ``gs://bucket/prefix``,
        ``abfss://container@account.dfs.core.windows.net/prefix``.

    Raises
    ------
    InvalidArgumentError
        The URI has another scheme, is a ``file:`` URI with another host, or contains credentials.
    MissingPackageError
        It is in an object store, and obstore is not installed.

    Notes
    -----
    An object store's credentials, region and endpoint are taken from the environment of each
    process that uses it: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``,
    ``AWS_ENDPOINT_URL`` and others that obstore reads.

    Examples
    --------
    >>> open_storage("file:///tmp/checkpoint").uri
    '/tmp/checkpoint'
    """
    text = os.fspath(location)
    if not text:
        raise InvalidArgumentError("a checkpoint's location is a path or URI, not an empty text")
    named = _SCHEME.match(text)
    scheme = named[0][:-1].lower() if named else None
    if scheme is None or scheme == "file" or scheme in SCHEMES:
        refuse_credentials(text, "checkpoint")
    if scheme is None:
        return LocalStorage(text)
    if scheme in SCHEMES:
        return ObjectStorage(text)
    if scheme != "file":
        # The rest is not shown: it may contain credentials.
        raise InvalidArgumentError(
            f"checkpoint {scheme}:...: the scheme {scheme!r} is not supported; use a "
            "local or shared folder, as a path or file:// URI, or an object store: "
            f"{', '.join(f'{scheme}://' for scheme in SCHEMES)}"
        )
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise InvalidArgumentError(
            f"checkpoint {text!r}: a file URI has an absolute path and no host, "
            "for example file:///data/checkpoint"
        )
    return LocalStorage(unquote(parts.path))


def local_only(location: str, what: str) -> str:
    """Return a path, or the one that a ``file:`` URI names; refuse an object store.

    Raises
    ------
    InvalidArgumentError
        It is no local folder.
    """
    storage = open_storage(location)
    if not isinstance(storage, LocalStorage):
        raise InvalidArgumentError(
            f"{what} is a folder of a local or shared file system, not {storage.uri}"
        )
    return storage.uri
