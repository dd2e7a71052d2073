"""Where checkpoints are: from a path or URL to a storage."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from pystate.checkpoint.object_storage import SCHEMES, ObjectStorage, refuse_credentials
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.errors import InvalidArgumentError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def open_storage(location: str | os.PathLike[str]) -> CheckpointStorage:
    """Return the storage of a folder (a path or ``file:`` URI), or of a URL in an object store.

    URLs are ``s3://bucket/prefix``, ``gs://bucket/prefix``, and
    ``abfss://container@account.dfs.core.windows.net/prefix``. Credentials, region and endpoint are
    taken from the environment of each process, never from the URL. `MissingPackageError` if obstore
    is not installed.
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
    """Return a path, or the one that a ``file:`` URI names; refuse an object store."""
    storage = open_storage(location)
    if not isinstance(storage, LocalStorage):
        raise InvalidArgumentError(
            f"{what} is a folder of a local or shared file system, not {storage.uri}"
        )
    return storage.uri
