"""Runs pages of the guide, each in a namespace of its own; all that need Spark share one session.

A page's blocks run in order, as the cells of a notebook do. Functions that are called test_... are
called, as pytest would. What each block prints goes to standard output at the end, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests.guide import blocks


def run(page: str) -> dict[str, Any]:
    """Run a page; returns what its blocks have printed, and the error that ended it."""
    space: dict[str, Any] = {"__name__": "__main__"}
    printed: list[str] = []
    for block in blocks(page):
        if block.reason is not None:
            printed.append("")
            continue
        before = dict(space)
        out = io.StringIO()
        try:
            # Errors name the page's own lines.
            code = compile("\n" * (block.line - 1) + block.text, page, "exec")
            with contextlib.redirect_stdout(out):
                exec(code, space)
                for name, value in list(space.items()):
                    if name.startswith("test_") and value is not before.get(name):
                        test: Callable[[], None] = value
                        test()
        except BaseException:
            return {"printed": printed, "error": out.getvalue() + traceback.format_exc()}
        printed.append(out.getvalue())
    return {"printed": printed, "error": None}


if __name__ == "__main__":
    results = [run(page) for page in sys.argv[1:]]
    print(json.dumps(results))
