"""Who may ask: a token where there is one, and no page of somebody else's by a trick with names.

A page that a browser has from elsewhere may not read answers of this server, since it allows no
other origin; unless the name of that page's server comes to mean, a moment later, this machine.
Such a request still has the other name in its header Host, by which it is known: a server that asks
for no token answers only to addresses, to `localhost`, and to names that it was given.

Thread safety: immutable.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

from pystate.errors import InvalidArgumentError
from pystate.serve.problems import RequestError

_LEAST_TOKEN = 16
_MOST_TOKEN = 4096


@dataclass(frozen=True)
class Guard:
    """What is asked of each request before anything else.

    Attributes
    ----------
    token : bytes or None
        What clients have to know.
    hosts : collection of str
        Names of this server, beside its addresses, in lower case; if there are none, and there is a
        token, it answers to any name.
    """

    token: bytes | None = field(default=None, repr=False)
    hosts: Collection[str] = ()

    def check(self, headers: dict[bytes, bytes], *, is_open: bool) -> None:
        """Refuse a request that does not come from where it should."""
        if (self.token is None or self.hosts) and b"host" in headers:
            host = headers[b"host"].decode("latin-1")
            if not self._is_own(_without_port(host)):
                raise RequestError(
                    421,
                    f"this server does not answer to the name {host!r:.100}: ask for its address, "
                    "or let it know the name, --allow-host",
                )
        if self.token is None or is_open:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
            raise RequestError(
                401,
                "this server asks for a token, "
                + (
                    "and the one that was sent is another one"
                    if given
                    else "which is missing: Authorization: Bearer TOKEN"
                ),
                {"WWW-Authenticate": 'Bearer realm="pystate"'},
            )

    def _is_own(self, host: str) -> bool:
        return host == "localhost" or host in self.hosts or _is_address(host)


@lru_cache(64)
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    name, colon, port = host.strip().lower().rpartition(":")
    if colon and (not port or port.isdigit()) and (":" not in name or name.endswith("]")):
        return name.rstrip(".")
    return host.strip().lower().rstrip(".")


def read_token(path: str) -> bytes:
    """The token in a file, which only its owner can read."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MOST_TOKEN + 1)
    except OSError as error:
        raise InvalidArgumentError(
            f"--token-file {path}: it cannot be read: {error.strerror}"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgumentError(f"--token-file {path} is no file")
    if status.st_mode & 0o077:
        raise InvalidArgumentError(
            f"--token-file {path} can be read or changed by others (its mode is "
            f"{stat.S_IMODE(status.st_mode):o}): chmod 600 it, and put a new token into it"
        )
    token = data.strip()
    if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN or not all(0x21 <= c <= 0x7E for c in token):
        raise InvalidArgumentError(
            f"--token-file {path}: a token has {_LEAST_TOKEN} to {_MOST_TOKEN} visible characters, "
            "and no spaces: python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
