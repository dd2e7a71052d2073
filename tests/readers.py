"""Readers of state for tests that hold of all of them: of files, and of a server over the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest

import pystate as ps

#: `pystate.connect`, or the same of a server that has the checkpoint.
Connect: TypeAlias = Callable[..., ps.StateReader]
READERS = ("files", "server")


def reader_of(kind: str, stack: ExitStack) -> Connect:
    """What connects to a checkpoint; servers run until the stack is closed."""
    if kind == "files":
        return ps.connect
    for package in ("starlette", "uvicorn", "httptools"):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    from tests.serving import served

    urls: dict[str, str] = {}

    def connect(location: str | os.PathLike[str], **options: Any) -> ps.StateReader:
        place = os.fspath(location)
        if place not in urls:
            urls[place] = stack.enter_context(served({"job": place})).url
        return ps.connect(f"{urls[place]}/job", **options)

    return connect
