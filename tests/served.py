"""A server of checkpoints for tests, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving(locations: Mapping[str, str], **options: Any) -> Iterator[str]:
    """Serve jobs by name at a free port of this machine; the address, with a slash at its end."""
    from pystate.serve.server import ServeOptions, Server

    server = Server(locations, ServeOptions(port=0, **options))
    thread = threading.Thread(target=server.run, name="served")
    thread.start()
    try:
        yield f"{server.url}/"
    finally:
        server.stop()
        thread.join()
