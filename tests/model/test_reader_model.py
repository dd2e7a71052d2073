"""A reader beside a store, through epochs, merges and retention, against dicts."""

from __future__ import annotations

import pickle
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.errors import CheckpointError

STATES: dict[str, Any] = {
    "n": ps.ValueState("long", default=7),
    "text": ps.ValueState("string"),
    "pair": ps.ValueState("struct<a: long, b: array<string>>"),
    "list": ps.ListState("string"),
    "map": ps.MapState("long", "double"),
    "mean": ps.AggregatingState(ps.Mean()),
    "most": ps.ReducingState("long", max),
    "thing": ps.ValueState(object),
}
EMPTY: dict[str, Any] = {
    **dict.fromkeys(STATES),
    "list": [],
    "map": {},
    "mean": [],
}
KEYS = [None, *(f"key {k}" for k in range(30))]
UID = "embedded"
Model = dict[Any, dict[str, Any]]


def change(store: ps.Store, model: Model, draw: random.Random) -> None:
    """Change one key in some way, in the store and in the model."""
    key, number = draw.choice(KEYS), draw.randrange(1000)
    store.set_current_key(key)
    row = model.setdefault(key, deepcopy(EMPTY))
    match draw.randrange(11):
        case 0:
            store.delete(store.keys([key]))
            del model[key]
        case 1:
            store["list"].clear()
            row["list"] = []
        case 2:
            store["list"].add(str(number))
            row["list"].append(str(number))
        case 3 | 4:
            store["map"].put(number % 7 - 3, number / 2)
            row["map"][number % 7 - 3] = number / 2
        case 5:
            store["map"].remove(number % 7 - 3)
            row["map"].pop(number % 7 - 3, None)
        case 6:
            store["mean"].add(number)
            row["mean"].append(number)
        case 7:
            store["most"].add(number)
            row["most"] = number if row["most"] is None else max(row["most"], number)
        case 8:
            row["pair"] = {"a": number, "b": ["b", None]}
            store["pair"].update(row["pair"])
            row["text"] = "t" * number
            store["text"].update(row["text"])
        case 9:
            store["thing"].update((number, "thing"))
            row["thing"] = (number, "thing")
        case _:
            store["n"].clear() if number % 3 == 0 else store["n"].update(number)
            row["n"] = None if number % 3 == 0 else number
    if key in model and model[key] == EMPTY:
        del model[key]


def expected(model: Model, key: Any) -> dict[str, Any]:
    """The row that a reader gives of a key."""
    if key not in model:
        return {"k": key, **dict.fromkeys(STATES)}
    row = dict(model[key])
    row["n"] = 7 if row["n"] is None else row["n"]
    row["mean"] = sum(row["mean"]) / len(row["mean"]) if row["mean"] else None
    row["map"] = sorted(row["map"].items())
    return {"k": key, **row}


def plain(rows: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = rows.to_pylist()
    for row in listed:
        if row.get("map") is not None:
            row["map"] = sorted(row["map"])
        if row.get("thing") is not None:
            row["thing"] = pickle.loads(row["thing"])
    return listed


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["k"]))


def check(reader: ps.StateReader, model: Model, draw: random.Random) -> None:
    """Compare what a reader says with the model of its epoch."""
    operator = reader[UID]
    asked = draw.choices([*KEYS, "not there"], k=40)
    assert plain(operator.get(asked)) == [expected(model, key) for key in asked]
    some = draw.sample(list(STATES), k=2)
    narrow = plain(operator.get(asked, states=some))
    assert narrow == [{n: expected(model, key)[n] for n in ("k", *some)} for key in asked]
    everything = in_order([expected(model, key) for key in model])
    assert in_order(plain(operator.scan().read_all())) == everything
    narrow = in_order(plain(operator.scan(columns=["k", *some]).read_all()))
    assert narrow == [{name: row[name] for name in ("k", *some)} for row in everything]
    least = draw.randrange(1000)
    for where, holds in (
        ([("n", ">", least)], lambda row: row["n"] > least),
        ([("n", "==", 7)], lambda row: row["n"] == 7),  # what keys without it have
        ([("text", "==", None)], lambda row: row["text"] is None),
        ([("text", "!=", None), ("most", "<", least)], lambda row: row["text"] is not None),
    ):
        found = operator.scan(columns=["k", "most"], where=where).read_all()
        wanted = [{"k": row["k"], "most": row["most"]} for row in everything if holds(row)]
        if len(where) > 1:
            wanted = [row for row in wanted if row["most"] is not None and row["most"] < least]
        assert in_order(plain(found)) == wanted
    found = operator.scan(columns=["k", "n"], where=[("k", "in", asked)]).read_all()
    wanted = [{"k": row["k"], "n": row["n"]} for row in everything if row["k"] in asked]
    assert in_order(plain(found)) == wanted
    key, first = draw.choice(asked), draw.randrange(-3, 4)
    entries = operator.entries("map", key, from_=first).read_all().to_pylist()
    has = sorted(model[key]["map"].items()) if key in model else []
    assert [tuple(entry.values()) for entry in entries] == [e for e in has if e[0] >= first]


@pytest.mark.parametrize("home", ["heap", "disk"])
@pytest.mark.parametrize("seed", range(2))
def test_a_reader_says_what_dicts_do(tmp_path: Path, seed: int, home: Any) -> None:
    draw, model, kept = random.Random(seed), {}, {}  # type: ignore[var-annotated]
    with ps.open(
        tmp_path / "store", key={"k": "string"}, states=STATES, retained=3, home=home
    ) as store:
        change(store, model, draw)
        kept[store.checkpoint()] = deepcopy(model)
        with ps.connect(store.path, cache_bytes=draw.choice([0, 1 << 20])) as reader:
            pinned = reader.at(1)
            for _ in range(8):
                for _ in range(draw.choice([1, 20, 60])):
                    change(store, model, draw)
                kept[store.checkpoint()] = deepcopy(model)
                before = reader.epoch
                if draw.random() < 0.7:
                    assert reader.refresh() == store.epoch
                check(reader, kept[reader.epoch], draw)
                assert reader.epoch >= before
                epochs: list[Any] = reader.epochs()["epoch"].to_pylist()
                epoch: int = draw.choice(epochs)
                check(reader.at(epoch), kept[epoch], draw)
                try:
                    check(pinned, kept[pinned.epoch], draw)
                except CheckpointError as error:
                    assert "retired" in str(error)
                    pinned = reader.at(reader.epoch)
    ps.savepoint(store.path, tmp_path / "savepoint")
    with ps.connect(tmp_path / "savepoint") as reader:
        check(reader, model, draw)
    ps.rescale(tmp_path / "savepoint", tmp_path / "other", max_parallelism=512)
    with ps.connect(tmp_path / "other") as reader:
        check(reader, model, draw)
