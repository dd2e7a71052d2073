"""Clients of object stores: from a URL, and the environment, to what sends the requests.

Thread safety: clients are shared by all threads of a process. Their own threads are not in a forked
child, which therefore can use no object store if its parent has used one.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pystate.base.installation import extra
from pystate.checkpoint.storage import checked_path
from pystate.errors import CheckpointError, InvalidArgumentError, MissingPackageError
from pystate.redaction import has_credentials

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ACCESS", "SCHEMES", "Place", "client_of", "package", "parsed", "refuse_credentials"]

#: The schemes of URLs, and the extra that installs what each needs.
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
#: Where credentials are taken from.
ACCESS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS",
    "azure": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_RETRIES = 8
_RETRY_TIMEOUT = timedelta(seconds=60)

_forked = False


class Place(NamedTuple):
    """A URL, taken apart."""

    scheme: str
    root: str
    """The URL of the bucket or container."""
    prefix: str
    """The path in it: empty, or with a slash at its end."""


def refuse_credentials(location: str, what: str) -> None:
    """Refuse a location that is more than a place; the message has none of it but its scheme.

    Raises
    ------
    InvalidArgumentError
        The location contains credentials, or is a URL that cannot be taken apart.
    """
    scheme, colon, _ = location.partition(":")
    is_url = bool(colon) and scheme.isascii() and scheme.replace("+", "").isalnum()
    if has_credentials(location):
        shown = f"{scheme.lower()}://..." if is_url else "(a connection string)"
        access = ACCESS.get(SCHEMES.get(scheme.lower(), ""))
        raise InvalidArgumentError(
            f"{what} {shown}: credentials are taken from the environment"
            f"{f' ({access})' if access else ''}, not from the URL"
        )
    try:
        urlsplit(location)
    except ValueError:
        # Its message may quote any part of the URL.
        if is_url:
            raise InvalidArgumentError(f"{what} {scheme}:...: that is no URL") from None


def parsed(url: str) -> Place:
    """Take a URL apart; `InvalidArgumentError` if it is none of a prefix in an object store."""
    refuse_credentials(url, "checkpoint")
    parts = urlsplit(url)
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.query or parts.fragment:
        raise InvalidArgumentError(f"checkpoint {shown!r}: a URL here has no ? and no #")
    if not parts.netloc:
        raise InvalidArgumentError(
            f"checkpoint {url!r} names no bucket: write {parts.scheme}://BUCKET/PREFIX"
        )
    prefix = parts.path.strip("/")
    if prefix:
        try:
            checked_path(prefix)
        except InvalidArgumentError:
            raise InvalidArgumentError(
                f"checkpoint {shown!r}: the path has an empty part, or . or .."
            ) from None
    return Place(scheme, f"{scheme}://{parts.netloc}", f"{prefix}/" if prefix else "")


def package(place: Place) -> Any:
    """Return the package obstore; `MissingPackageError` if it is not installed."""
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise MissingPackageError(
            f"a checkpoint in {place.root} needs obstore, here and on the executors ({error}): "
            f"{extra(SCHEMES[place.scheme])}"
        ) from error


def _environment() -> tuple[tuple[str, str], ...]:
    """What a client depends on."""
    ours = ("AWS_", "GOOGLE_", "AZURE_")
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(ours)))


def client_of(place: Place) -> ObjectStore:
    """Return a client, which the tasks of one worker share.

    Raises
    ------
    CheckpointError
        This process was forked from one that had used an object store.
    """
    if _forked:
        raise CheckpointError(
            f"{place.root}: this process was forked from one that had used an object store, which "
            "does not work: start it by spawn, not by fork"
        )
    return _client_of(place, _environment())


@lru_cache(maxsize=16)
def _client_of(place: Place, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    store = importlib.import_module("obstore.store")
    options: dict[str, Any] = {}
    if place.scheme == "s3" and "AWS_COPY_IF_NOT_EXISTS" not in dict(environment):
        # S3's own copy has no condition, but the end of one in pieces has.
        options["copy_if_not_exists"] = "multipart"
    client: ObjectStore = store.from_url(
        place.root,
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
        **options,
    )
    return client


def _note_fork() -> None:
    # The client's threads are not in the child, which would wait for them for ever.
    global _forked
    _forked = _forked or _client_of.cache_info().currsize > 0


os.register_at_fork(after_in_child=_note_fork)
