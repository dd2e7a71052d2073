"""The process that runs one statement for another process, and may not take more memory.

An engine accounts for its tables, and not for each text or list that a function makes, so that one
call can take all the memory of a host. What the system gives a process it counts exactly: so this
one has a limit, beyond which it gets nothing, or ends.

Thread safety: a program of its own.
"""

from __future__ import annotations

import errno
import io
import json
import resource
import sys
from typing import Any, BinaryIO

import pyarrow as pa

from pystate.errors import PystateError
from pystate.processor.epochs import MissingFileError, NotHeldError
from pystate.query.reader import connect_files
from pystate.query.sql.execution import new_engine
from pystate.query.sql.process import BATCH, END, ERROR, LOST, SCHEMA, read_request, write_frame
from pystate.query.sql.statement import Limits

#: What Python, Arrow and parts of state that are being read take beside the engine.
_BESIDE_BYTES = 512 << 20


def main() -> None:
    """Read a request from standard input, and write the answer to standard output."""
    answer(read_request(sys.stdin.buffer), sys.stdout.buffer)


def answer(request: dict[str, Any], out: BinaryIO) -> None:
    """Write the rows of a statement, or the error."""
    try:
        limits: dict[str, Any] = request["limits"]
        new_engine(Limits.of(**limits)).close()  # what it loads does not count
        _limit_memory(limits["memory_bytes"])
        with connect_files(request["location"], epoch=request["epoch"]) as reader:
            scanned = reader.scan_sql(request["query"], request["parameters"], **limits)
            write_frame(out, SCHEMA, scanned.schema.serialize().to_pybytes())
            for rows in scanned:
                sink = io.BytesIO()
                with pa.ipc.new_stream(sink, scanned.schema) as stream:
                    stream.write_batch(rows)
                write_frame(out, BATCH, sink.getvalue())
        write_frame(out, END, b"")
    except (MissingFileError, NotHeldError) as error:
        write_frame(out, LOST, str(error).encode())
    except MemoryError:
        return  # without an end: who reads knows why
    except PystateError as error:
        name = type(error).__name__
        write_frame(out, ERROR, json.dumps([name, str(error)]).encode())
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise


def _limit_memory(memory_bytes: int) -> None:
    taken = 0
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmData:"):
                taken = int(line.split()[1]) << 10
    limit = taken + memory_bytes + _BESIDE_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
