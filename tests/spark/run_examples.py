"""Runs examples one after the other, for `test_examples.py`: their sessions share one JVM.

A line of the input has the name of an example and its options, as JSON; a line of the output has
its exit status and what it has printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import runpy
import sys
import traceback


def run(example: str, *options: str) -> tuple[int, str]:
    """Run an example as `python -m` does."""
    printed = io.StringIO()
    sys.argv = [example, *options]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_module(f"pystate.examples.{example}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code)
        except BaseException:
            traceback.print_exc()
            status = 1
        else:
            status = 0
    # Its logs are in a folder that has gone.
    for name in ("py4j", "pystate"):
        logging.getLogger(name).handlers.clear()
    return status, printed.getvalue()


if __name__ == "__main__":
    # What the JVM and the workers print is no answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(run(*json.loads(line))), file=answers, flush=True)
