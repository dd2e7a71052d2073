"""The commands that read state: `read`, `diff` and `export`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.cli import read as reading
from pystate.cli.read import keys_of
from pystate.errors import InvalidArgumentError
from pystate.processor.epochs import missing_file
from pystate.types.keys import leaves
from pystate.types.state_type import parse_type
from tests.unit.cli.test_cli import run
from tests.work import Work


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """A store of two key columns and of many types."""
    states = {
        "l": ps.ListState("long"),
        "m": ps.MapState("string", "double"),
        "s": ps.ValueState("struct<a:date,b:decimal(5,2)>"),
        "b": ps.ValueState("binary"),
        "f": ps.ValueState("double"),
        "t": ps.ValueState("timestamp"),
    }
    with ps.open(tmp_path / "c", key={"k": "string", "d": "date"}, states=states) as store:
        store.set_current_key(("ü\x1b[2J", date(1970, 1, 4)))
        store["l"].add_all([1, 2])
        store["m"].put("y", 0.5)
        store["s"].update((date(1970, 1, 2), Decimal("1.50")))
        store["b"].update(b"\xff\x00")
        store["f"].update(float("inf"))
        store["t"].update(datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc))
        store.checkpoint()
        store.set_current_key(("b", None))
        store["f"].update(1.5)
        store.checkpoint()
    return tmp_path / "c"


def test_read_prints_rows(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a", "b")).some(4)
    code, said, _ = run("read", work.root, "--uid", "a", "--json")
    assert code == 0 and {r["k"]: r["n"] for r in json.loads(said)} == work.counts
    code, said, _ = run("read", work.root, "--uid", "a", "--format", "jsonl")
    assert code == 0 and {r["k"]: r["n"] for r in map(json.loads, said.splitlines())} == work.counts
    code, said, _ = run("read", work.root, "--uid", "a", "--format", "csv", "--state", "n")
    rows = list(csv.reader(said.splitlines()))
    assert code == 0 and rows[0] == ["k", "n"]
    assert {int(k): int(n) for k, n in rows[1:]} == work.counts
    code, said, _ = run("read", work.root, "--uid", "a", "--limit", "5", "--epoch", "3")
    assert code == 0 and said.splitlines()[0].split() == ["k", "n", "s"]
    assert len(said.splitlines()) == 7
    assert said.endswith("There are more rows than 5: --limit says how many to print.\n")
    assert "There are more" not in run("read", work.root, "--uid", "a", "--limit", "43")[1]
    code, said, _ = run("read", work.root, "--uid", "b", "--key", "3", "--key", "0", "--json")
    assert code == 0 and {r["k"]: r["n"] for r in json.loads(said)} == {
        k: work.counts[k] for k in (0, 3)
    }
    assert run("read", work.root, "--uid", "b", "--key", "999") == (0, "There are no rows.\n", "")
    assert run("read", work.root, "--uid", "b", "--key", "999", "--json") == (0, "[]\n", "")
    assert run("read", work.root, "--uid", "b", "--limit", "0", "--format", "csv") == (0, "", "")


def test_read_prints_all_types(typed: Path) -> None:
    code, said, _ = run("read", typed, "--json")
    first, second = sorted(json.loads(said), key=lambda row: row["d"] is None)
    assert code == 0 and first == {
        "k": "ü\x1b[2J",
        "d": "1970-01-04",
        "l": [1, 2],
        "m": [["y", 0.5]],
        "s": {"a": "1970-01-02", "b": "1.50"},
        "b": "/wA=",
        "f": "inf",
        "t": "1970-01-01T00:00:01+00:00",
    }
    assert (second["k"], second["d"], second["f"], second["b"]) == ("b", None, 1.5, None)
    code, said, _ = run("read", typed, "--limit", "9")
    assert code == 0 and r"ü\x1b[2J" in said and "\x1b" not in said and "null" in said
    assert '{"a": "1970-01-02", "b": "1.50"}' in said
    exploded = ("--state", "l", "--explode", "--json")
    assert [r["l"] for r in json.loads(run("read", typed, *exploded)[1])] == [1, 2]


def test_keys_of_structs_may_leave_out_the_marks_of_null_structs() -> None:
    key = tuple(leaves("st", parse_type("struct<city:string,at:struct<x:long,y:long>>")))
    for texts in (['["a", 1, 2]', '["b", null, null]'], ['["a", 1, 2, null, null]']):
        columns = keys_of(texts, key)
        assert [column[0].as_py() for column in columns] == ["a", 1, 2, None, None]
    with pytest.raises(InvalidArgumentError, match="give a JSON list of 5 values"):
        keys_of(['["a", 1]'], key)


def test_keys_of_several_columns(typed: Path) -> None:
    found = json.loads(run("read", typed, "--key", '["b", null]', "--json")[1])
    assert [row["k"] for row in found] == ["b"]
    assert json.loads(run("read", typed, "--key", '["b", "1970-01-04"]', "--json")[1]) == []
    for wrong in ("b", '["b"]', '{"a": 1}', "[1, 2, 3]"):
        code, said, told = run("read", typed, "--key", wrong)
        assert (code, said) == (2, "") and "give a JSON list of 2 values" in told, wrong
    code, said, told = run("read", typed, "--key", '["b", "soon"]')
    assert (code, said) == (2, "") and "not of type date" in told and "key column 'd'" in told


def test_diff_prints_changes(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(3)
    code, said, _ = run("diff", work.root, "1", "--json")
    found = {r["k"]: r for r in json.loads(said)}
    assert code == 0 and {k: r["after"]["n"] for k, r in found.items() if r["change"] == "put"} == {
        k: n for k, n in work.counts.items() if k
    }
    code, said, _ = run("diff", work.root, "2", "3", "--state", "n", "--key", "5", "--json")
    assert json.loads(said) == [{"k": 5, "change": "put", "before": 3, "after": 6}]
    assert len(run("diff", work.root, "0", "1", "--format", "jsonl")[1].splitlines()) == 40
    assert run("diff", work.root, "3", "3") == (0, "There are no rows.\n", "")
    code, said, told = run("diff", work.root, "3", "2")
    assert (code, said) == (2, "") and "give the older one first" in told
    code, said, told = run("diff", work.root, "9", "10")
    assert (code, said) == (2, "") and "does not hold epoch 10; it has 1 to 3" in told


def test_which_operator_is_asked(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a", "b")).some(1)
    for command in (["read"], ["diff", "0"], ["export", str(tmp_path / "out")]):
        code, said, told = run(command[0], work.root, *command[1:])
        assert (code, said) == (2, "") and "which operator? It has 'a', 'b': give its uid" in told
    work = Work(tmp_path / "n", uids=("counts", "names")).some(1)
    written = str(tmp_path / "e")
    for command in (["read"], ["read", "--key", "1"], ["diff", "0"], ["export", written]):
        code, said, told = run(command[0], work.root, *command[1:], "--uid", "cuonts")
        assert (code, said) == (2, "") and "no operator 'cuonts' in epoch 1" in told
        assert "did you mean 'counts'?" in told and not Path(written).exists()
    for command in (["read"], ["export", written]):
        code, said, told = run(command[0], work.root, *command[1:], "--epoch", "2")
        assert (code, said) == (2, "") and "does not hold epoch 2; it has 1 to 1" in told


def test_what_is_wrong_with_the_checkpoint_is_no_wrong_use(tmp_path: Path) -> None:
    with Work(tmp_path / "c").coordinator():
        pass
    code, said, told = run("read", tmp_path / "c", "--uid", "a")
    assert (code, said) == (1, "") and "has no epoch yet" in told


def test_wrong_names_within_an_operator_are_wrong_use(tmp_path: Path) -> None:
    work = Work(tmp_path / "c", uids=("a", "b")).some(1)
    code, said, told = run("read", work.root, "--uid", "a", "--state", "m")
    assert (code, said) == (2, "") and "'m'" in told
    assert run("read", work.root, "--uid", "a", "--format", "xml")[0] == 2
    code, said, told = run("read", work.root, "--uid", "a", "--format", "csv", "--json")
    assert (code, said) == (2, "") and "--json is --format json" in told


def test_read_begins_anew_if_its_epoch_is_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "c").some(1)
    real, fails = reading.scan_state, [True]

    def scan_state(*arguments: Any, **options: Any) -> pa.RecordBatchReader:
        reader = real(*arguments, **options)

        def batches() -> Iterator[pa.RecordBatch]:
            if fails:
                fails.pop()
                raise missing_file(work.storage, 1, "state/x")
            yield from reader

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    monkeypatch.setattr(reading, "scan_state", scan_state)
    code, said, _ = run("read", work.root, "--json")
    assert code == 0 and {r["k"]: r["n"] for r in json.loads(said)} == work.counts
    fails.append(True)
    code, said, told = run("read", work.root, "--epoch", "1", "--format", "jsonl")
    assert (code, said) == (1, "") and "names is missing" in told


def test_export_writes_parquet(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(3)
    code, said, _ = run("export", work.root, tmp_path / "out")
    assert code == 0 and said.startswith(
        f"Operator 'op' as of epoch 3 is exported to {tmp_path / 'out'}: 42 rows, 2 files, "
    )
    table = pq.read_table(tmp_path / "out")
    assert dict(zip(*(table[n].to_pylist() for n in ("k", "n")), strict=True)) == work.counts
    code, said, told = run("export", work.root, tmp_path / "out")
    assert (code, said) == (2, "") and "--overwrite" in told
    again = ("--overwrite", "--epoch", "2", "--state", "n", "--json")
    code, said, _ = run("export", work.root, tmp_path / "out", *again)
    assert code == 0 and json.loads(said)["epoch"] == 2
    assert pq.read_table(tmp_path / "out").column_names == ["k", "n"]
