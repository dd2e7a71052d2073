"""A checkpoint that is read beside the program that adds to it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import ClosedError, InvalidArgumentError, WrongTypeError
from tests.readers import Connect

STATES: dict[str, Any] = {
    "n": ps.ValueState("long", default=0),
    "text": ps.ValueState("string"),
    "list": ps.ListState("long"),
    "map": ps.MapState("string", "double"),
    "thing": ps.ValueState(object),
}
UID = "embedded"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ps.Store]:
    with ps.open(tmp_path / "store", key={"k": "string"}, states=STATES, retained=3) as store:
        change(store, "abc", 1)
        yield store


def change(store: ps.Store, keys: str, n: int) -> int:
    for key in keys:
        store.set_current_key(key)
        store["n"].update(n)
        store["list"].add(n)
        store["map"].put(key, n / 2)
    return store.checkpoint()


def keys_of(rows: pa.Table) -> list[str]:
    keys: list[Any] = rows["k"].to_pylist()
    return sorted(keys)


def test_keys_come_in_the_order_in_which_they_are_asked_for(
    store: ps.Store, connect: Connect
) -> None:
    with connect(store.path) as reader:
        rows = reader[UID].get(["c", "x", "a", "c", None], states=["n", "list"])
    assert rows.schema.names == ["k", "n", "list"]
    assert rows.to_pylist() == [
        {"k": "c", "n": 1, "list": [1]},
        {"k": "x", "n": None, "list": None},
        {"k": "a", "n": 1, "list": [1]},
        {"k": "c", "n": 1, "list": [1]},
        {"k": None, "n": None, "list": None},
    ]


def test_a_reader_stands_at_an_epoch_until_it_is_told_to_move(
    store: ps.Store, connect: Connect
) -> None:
    with connect(store.path) as reader:
        operator, first = reader[UID], reader.at(1)
        assert (reader.epoch, reader.uids) == (1, (UID,))
        change(store, "ad", 7)
        assert operator.get(["a", "d"])["n"].to_pylist() == [1, None]
        assert reader.refresh() == reader.epoch == 2
        assert operator.get(["a", "d"])["n"].to_pylist() == [7, 7]
        assert first.refresh() == 1
        assert first[UID].get(["a", "d"])["n"].to_pylist() == [1, None]
        assert reader.epochs()["epoch"].to_pylist() == [1, 2]


def test_rows_are_filtered_and_projected(store: ps.Store, connect: Connect) -> None:
    change(store, "bd", 5)
    with connect(store.path) as reader:
        operator = reader[UID]
        rows = operator.scan(columns=["n", "k"], where=[("n", ">", 1)]).read_all()
        assert rows.schema.names == ["n", "k"]
        assert keys_of(rows) == ["b", "d"]
        either = [[("k", "==", "a"), ("n", "<", 3)], [("k", "in", ["b", "x"])]]
        assert keys_of(operator.scan(where=either).read_all()) == ["a", "b"]
        assert operator.scan().read_all().num_rows == 4
        group = ps.key_group(ps.hash_keys([["a"]])[0], 128)
        assert operator.scan(key_groups=[group]).read_all()["k"].to_pylist() == ["a"]


def test_what_is_asked_wrongly(store: ps.Store, connect: Connect) -> None:
    with connect(store.path) as reader:
        operator = reader[UID]
        cases: list[tuple[Callable[[], object], str]] = [
            (lambda: reader["embeded"], "has no operator 'embeded'.*did you mean 'embedded'"),
            (lambda: operator.get(["a"], states=["m"]), "no column 'm'; it has 'n', 'text'"),
            (lambda: operator.scan(columns=["N"]), "no column 'N'.*did you mean 'n'"),
            (lambda: operator.scan(where=[("map", "==", 1)]), "'map'.*cannot be compared"),
            (lambda: operator.scan(where=[("n", "~", 1)]), "'~' is no comparison of column 'n'"),
            (lambda: operator.scan(where="n > 1"), "where is a list of conditions"),
            (lambda: operator.timers(), "'embedded' has no timers"),
            (lambda: reader.at(9), "does not hold epoch 9; it has 1 to 1"),
        ]
        for act, message in cases:
            with pytest.raises(InvalidArgumentError, match=message):
                act()
        with pytest.raises(WrongTypeError, match="key column 'k' is string"):
            operator.get([1])
        with pytest.raises(WrongTypeError, match="where: column 'n' of operator 'embedded'"):
            operator.scan(where=[("n", ">", "x")])


def test_a_closed_reader_reads_no_more(store: ps.Store, connect: Connect) -> None:
    reader = connect(store.path)
    operator, pinned = reader[UID], reader.at(1)
    pinned.close()
    with pytest.raises(ClosedError, match="is closed: connect again"):
        pinned[UID]
    assert operator.get(["a"])["n"].to_pylist() == [1]
    reader.close()
    reader.close()
    for act in (lambda: operator.get(["a"]), lambda: reader[UID], reader.refresh):
        with pytest.raises(ClosedError, match="is closed: connect again"):
            act()


def test_a_forked_child_connects_itself(store: ps.Store) -> None:
    with ps.connect(store.path) as reader:
        child = os.fork()
        if not child:
            try:
                reader[UID]
            except ClosedError as error:
                os._exit(0 if "connect in each process" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert reader[UID].get(["a"])["n"].to_pylist() == [1]


def test_threads_read_one_epoch_while_another_one_moves_on(
    store: ps.Store, connect: Connect
) -> None:
    failed: list[Any] = []
    done = threading.Event()

    def read(reader: ps.StateReader) -> None:
        while not done.is_set():
            rows: pa.Table = reader[UID].get(list("abc"))
            if len(set(rows["n"].to_pylist())) != 1:
                failed.append(rows.to_pylist())

    with connect(store.path) as reader:
        threads = [threading.Thread(target=read, args=[reader]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(2, 12):
            change(store, "abc", n)
            reader.refresh()
        done.set()
        for thread in threads:
            thread.join()
        assert not failed
        assert reader[UID].get(["a"])["n"].to_pylist() == [11]
