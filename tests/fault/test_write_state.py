"""`write_state` cut short: killed at each step, a real disk that fills up, rows that are refused.

Whatever happens, nothing opens as a savepoint but one that is whole.
"""

from __future__ import annotations

import decimal
import random
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import InvalidArgumentError, NoSpaceError, PystateError
from tests.drawn import stride
from tests.work import content

LONG = ps.ValueState("long")


def rows_of(folder: Path, uid: str) -> dict[int, int]:
    table = ps.read_state(folder, uid)
    return dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))


def numbers(count: int, factor: int = 1) -> ps.StateRows:
    rows = {"k": list(range(count)), "n": [k * factor for k in range(count)]}
    return ps.StateRows(rows, {"k": "long"}, {"n": LONG})


# Forks for each step, since an interpreter takes longer to begin than all steps.
_KILLED = """
import os, signal, sys
import pystate as ps
root, base, stride = sys.argv[1:]
rows = {"k": list(range(100)), "n": list(range(100))}
given = {"a": ps.StateRows(rows, {"k": "long"}, {"n": ps.ValueState("long")})}
for step in range(0, 500, int(stride)):
    folder = f"{root}/{step}"
    child = os.fork()
    if not child:
        left = [step]
        def hook(event, arguments):
            if event in ("open", "os.link", "os.remove", "os.mkdir", "os.rename"):
                if str(arguments[0]).startswith(folder):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        ps.write_state(folder, given, base=base, parallelism=2)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    if status == 0:
        break
print(step)
"""


@pytest.mark.drawn
def test_a_kill_at_each_step_leaves_no_savepoint(tmp_path: Path) -> None:
    base, every = tmp_path / "base", stride(5)
    ps.write_state(base, {"a": numbers(3), "b": numbers(5, 7)})
    before = content(base)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path / "at"), str(base), str(every)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps > 25
    whole = 0
    for step in range(0, steps + 1, every):
        folder = tmp_path / "at" / str(step)
        if (folder / "savepoint.json").exists():
            whole += 1
            assert rows_of(folder, "a") == {k: k for k in range(100)}
            assert rows_of(folder, "b") == {k: 7 * k for k in range(5)}
            assert ps.verify(folder).ok
            continue
        for read in (
            lambda f=folder: begin_with(LocalStorage(f), LocalStorage(tmp_path / "x"), job="job"),
            lambda f=folder: ps.write_state(tmp_path / "y", {"c": numbers(1)}, base=f),
        ):
            with pytest.raises(InvalidArgumentError, match="is not a savepoint"):
                read()
        if any(not name.endswith(".tmp") for name in content(folder)):
            with pytest.raises(InvalidArgumentError, match=r"is not empty .* remove the folder"):
                ps.write_state(folder, {"a": numbers(1)})
    assert (folder / "savepoint.json").exists() and whole <= 4  # what follows its link
    assert content(base) == before and not (tmp_path / "x").exists()
    # After what was left is removed, the same call does it.
    shutil.rmtree(tmp_path / "at" / "10", ignore_errors=True)
    ps.write_state(tmp_path / "at" / "10", {"a": numbers(4)}, base=base)
    assert rows_of(tmp_path / "at" / "10", "a") == {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_disk_that_fills_up(small: Path) -> None:
    """Of 8 MB: the state does not fit, and another one does after that."""
    noise = random.Random(7).randbytes(12 << 20)
    values = [noise[i : i + 4096] for i in range(0, len(noise), 4096)]
    states = {"n": ps.ValueState("binary")}
    given = {"k": list(range(len(values))), "n": values}
    for _ in range(2):
        with pytest.raises(NoSpaceError, match=r"savepoint.*No space|full: .*savepoint"):
            ps.write_state(small / "savepoint", {"a": ps.StateRows(given, {"k": "long"}, states)})
        assert not content(small)
    ps.write_state(small / "savepoint", {"a": numbers(50)})
    assert rows_of(small / "savepoint", "a") == {k: k for k in range(50)}


def test_a_disk_that_fills_up_beside_a_base(small: Path, tmp_path: Path) -> None:
    big = ps.StateRows(
        {"k": list(range(3000)), "n": [random.Random(k).randbytes(4096) for k in range(3000)]},
        {"k": "long"},
        {"n": ps.ValueState("binary")},
    )
    ps.write_state(tmp_path / "base", {"big": big})
    with pytest.raises(NoSpaceError):
        ps.write_state(small / "s", {"a": numbers(5)}, base=tmp_path / "base")
    assert not content(small)


@pytest.mark.parametrize(
    ("state", "column", "message"),
    [
        ("int", pa.array([1 << 40]), r"state 'n'"),
        ("int", pa.array([1.5]), r"state 'n'"),
        ("long", pa.array([True]), r"state 'n' is long"),
        ("date", pa.array([1]), r"state 'n' is date"),
        ("string", pa.array([b"\xff"]), r"state 'n' is string"),
        ("decimal(5,2)", pa.array([decimal.Decimal("12345.67")]), r"state 'n'"),
        ("struct<a:int>", pa.array([{"b": 1}]), r"state 'n'"),
        ("array<int>", pa.array([["x"]]), r"state 'n'"),
    ],
    ids=str,
)
def test_a_wrong_type_is_named_and_leaves_nothing(
    tmp_path: Path, state: str, column: Any, message: str
) -> None:
    rows = ps.StateRows(
        pa.table({"k": [1], "n": column}), {"k": "long"}, {"n": ps.ValueState(state)}
    )
    with pytest.raises(PystateError, match=message) as raised:
        ps.write_state(tmp_path / "s", {"fine": numbers(9), "c": rows})
    assert "'c'" in str(raised.value) and "\n" not in str(raised.value)
    assert not content(tmp_path / "s")
    ps.write_state(tmp_path / "s", {"fine": numbers(9)})


def test_nulls_are_absent_values(tmp_path: Path) -> None:
    """Of each kind of state, of keys of several columns, and a key without any state."""
    states = {
        "v": ps.ValueState("long", default=5),
        "s": ps.ValueState("struct<a:int,b:string>"),
        "l": ps.ListState("string"),
        "m": ps.MapState("string", "long"),
        "r": ps.ReducingState("double", max),
    }
    types = {
        "a": pa.string(),
        "b": pa.date32(),
        "v": pa.int64(),
        "s": pa.struct([("a", pa.int32()), ("b", pa.string())]),
        "l": pa.list_(pa.string()),
        "m": pa.map_(pa.string(), pa.int64()),
        "r": pa.float64(),
    }
    empty: dict[str, Any] = dict.fromkeys(states)
    rows: list[dict[str, Any]] = [
        {"a": None, "b": None, **empty, "v": 1},
        {"a": None, "b": date(2026, 1, 1), **empty, "s": {"a": None, "b": None}},
        {"a": "x", "b": None, **empty, "l": ["y"]},
        {"a": "", "b": None, **empty, "m": [("z", 1)]},
        {"a": "nothing", "b": None, **empty},
        {"a": "empty", "b": None, **empty, "l": [], "m": []},
        {
            "a": "all",
            "b": None,
            "v": 2,
            "s": {"a": 1, "b": None},
            "l": [""],
            "m": [("", 0)],
            "r": 1,
        },
    ]
    table = pa.Table.from_pylist(rows, pa.schema(list(types.items())))
    key = {"a": "string", "b": "date"}
    ps.write_state(tmp_path / "s", {"c": ps.StateRows(table, key, states)})
    kept = [row for row in rows if row["a"] not in ("nothing", "empty")]
    for row in kept:
        row["l"], row["m"] = row["l"] or [], row["m"] or []
    found = ps.read_state(tmp_path / "s", "c", defaults=False).to_pylist()
    assert sorted(found, key=str) == sorted(kept, key=str)
    assert ps.read_state(tmp_path / "s", "c", keys=[[None], [None]])["v"].to_pylist() == [1]
    # All columns of a state may be null, of the type null, too.
    nothing = pa.table({"k": [1], "n": pa.nulls(1)})
    ps.write_state(tmp_path / "t", {"c": ps.StateRows(nothing, {"k": "long"}, {"n": LONG})})
    assert ps.read_state(tmp_path / "t", "c").num_rows == 0
