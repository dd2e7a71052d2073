"""Where tasks find the folder of their executor's tables, and who frees it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pystate.spark.tasks import table_move
from pystate.tables.host import TableHome, base_folder

APPLICATION = bytes(range(32))


def test_each_task_looks_for_the_janitor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engaged: list[TableHome] = []
    monkeypatch.setattr(table_move, "engage_janitor", engaged.append)
    monkeypatch.setattr(table_move, "ancestor_named", lambda name: os.getpid())
    homes = [table_move.executor_home(APPLICATION, str(tmp_path / "tables")) for _ in range(2)]
    assert engaged == homes and homes[0] is homes[1]
    assert homes[0].folder is not None
    assert os.path.dirname(homes[0].folder) == table_move.tables_folder(str(tmp_path / "tables"))
    assert table_move.tables_folder("shm") == base_folder()
