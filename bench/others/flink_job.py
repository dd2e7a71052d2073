"""A count per key with Flink SQL: ``python flink_job.py rows-folder state-folder backend``.

It runs in this process's cluster, with a checkpoint each second, and throws the counts away. A last
argument ``check`` says to compute them once more, untimed, and in small batches, so that their sum
can be looked at: each count that changes is two rows to add otherwise.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from typing import Any

from pyflink.common import Configuration, RowKind
from pyflink.table import EnvironmentSettings, TableEnvironment

COUNTS = "SELECT k, COUNT(*) AS n FROM given GROUP BY k"


def environment(rows: str, folder: str, backend: str, **more: str) -> Any:
    """A session with the table `given`."""
    configuration = Configuration()
    for name, value in {
        "parallelism.default": "2",
        "state.backend.type": backend,
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": f"file://{folder}",
        "execution.checkpointing.incremental": "true",
        "taskmanager.memory.managed.size": "1g",
        **more,
    }.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    flink = TableEnvironment.create(settings.with_configuration(configuration).build())
    flink.execute_sql(
        "CREATE TABLE given (k BIGINT) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{rows}', 'format' = 'csv')"
    )
    return flink


def main() -> None:
    """Time it."""
    rows, folder, backend, *check = sys.argv[1:]
    flink = environment(rows, folder, backend)
    flink.execute_sql(
        "CREATE TABLE counted (k BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('connector' = 'blackhole')"
    )
    began = time.perf_counter()
    flink.execute_sql(f"INSERT INTO counted {COUNTS}").wait()
    found = {"seconds": time.perf_counter() - began, "version": metadata.version("apache-flink")}
    if check:
        batches = {"enabled": "true", "allow-latency": "5 s", "size": "1000000"}
        checked = environment(
            rows,
            folder,
            backend,
            **{f"table.exec.mini-batch.{name}": value for name, value in batches.items()},
        )
        query = f"SELECT COUNT(*), SUM(n), SUM(n * n) FROM ({COUNTS})"
        with checked.execute_sql(query).collect() as changes:
            for change in changes:
                if change.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                    last = list(change)
        found |= dict(zip(("keys", "rows", "squares"), last, strict=True))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
