"""Arguments of public functions: what is wrong with one is said in an error of pystate's own.

Each case is an expression over the names below, and a part of the message that it ends with.
"""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import pystate as ps
from pystate.base.arguments import nearest, shown
from pystate.errors import PystateError
from pystate.spark import Job, ParquetSink, Sink, foreach_epoch, register_sink
from pystate.testing import Harness


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield key, 1


def refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises(PystateError, match=message) as raised:
        act()
    assert "\n" not in str(raised.value)


NO_COUNT = ["'4'", "4.5", "True", "-1", "None"]
COUNT = r"is a whole number, not|must be at least|, and must be \d"
NO_FLAG = ["'no'", "None", "1"]
NO_LENGTH = ["'x'", "-1", "1.5", "True"]

JOB = {
    "name": (["3", "None", "''", "pd"], r"^Job: name is a string, not .*: Job\('flights'"),
    "checkpoint": (["3", "None", "''", "pd"], r"^job 'j': checkpoint is the path of a folder, not"),
    "parallelism": (["'4'", "4.5", "True", "0", "32769"], "^job 'j': parallelism is .* the defaul"),
    "max_parallelism": (["'4'", "4.5", "True", "0", "32769"], "^job 'j': max_parallelism is"),
    "retained": (["0", *NO_COUNT], rf"^job 'j': retained .*({COUNT})"),
    "memory_limit_bytes": (NO_COUNT, rf"^job 'j': memory_limit_bytes .*({COUNT})"),
    "disk_bytes": (NO_COUNT, rf"^job 'j': disk_bytes .*({COUNT})"),
    "max_evaluations": (NO_COUNT, rf"^job 'j': max_evaluations .*({COUNT})"),
    "allow_unclaimed_state": (NO_FLAG, "^job 'j': allow_unclaimed_state is True or False, not"),
    "shared_tables": (NO_FLAG, "^job 'j': shared_tables is True or False, not"),
    "allow_time_back": (NO_FLAG, "^job 'j': allow_time_back is True or False, not"),
    "on_invalid": (["'x'", "None", "3"], "^job 'j': on_invalid.*'drop'.*'fail'"),
    "replace": (NO_FLAG, "^job 'j': replace is True or False, not"),
    "allow_pickle": (NO_FLAG, "^job 'j': allow_pickle is True or False, not"),
    "restore": (["3", "''", "b'x'", "'latest'"], "^job 'j': restore is the (path of a )?folder"),
    "claim": ([*NO_FLAG, "True"], "^job 'j': claim (is True or False, not|and uid_map say how)"),
    "uid_map": (["{}", "{'a': 'b'}", "3"], "^job 'j': claim and uid_map say how to begin"),
    "table_home": (["'shmm'", "None", "3"], "^job 'j': table_home is 'shm', .*, 'disk' or"),
    "max_clock_step": ([*NO_LENGTH, "None"], "^job 'j': max_clock_step=.*(length of time|between)"),
    "max_lease": ([*NO_LENGTH, "None"], "^job 'j': max_lease=.*(length of time|between)"),
    "epoch_timeout": (NO_LENGTH, "^job 'j': epoch_timeout=.*(length of time|between)"),
    "checkpoints": (["3", "None", "{'interval': 3}"], "^job 'j': checkpoints is a pystate.Check"),
    "listeners": (["3", "None", "[3]", "'x'", "Counts()"], "^job 'j': listeners is a list of"),
    "metrics": (["3", "'x'", "True", "pd"], "^job 'j': metrics is a prometheus_client.Collector"),
}

STORE = {
    "path": (["3", "None", "''"], "^ps.open: path is the path of a folder, not"),
    "key": (["3", "None", "'longg'", "object", "[]", "{}", "['long']", "{'k': int}"], "key|type"),
    "states": (["3", "None", "[]", "ps.ValueState('long')"], "states is a dict, not .*: write"),
    "states ": (["{'n': 'long'}", "{'n': ps.ValueState}", "{3: N}", "{'': N}"], "state|no name"),
    "max_parallelism": (["'4'", "4.5", "True", "0", "32769"], "max_parallelism is"),
    "limit_bytes": (NO_COUNT, rf"limit_bytes ({COUNT}|is -1)"),
    "retained": (["0", *NO_COUNT], rf"^the store .*: retained ({COUNT}|is)"),
    "lock_timeout_ms": (NO_COUNT, "^the store .*: lock_timeout_ms is"),
    "allow_unclaimed_state": (NO_FLAG, "^the store .*: allow_unclaimed_state is True or False"),
    "allow_pickle": (NO_FLAG, "^the store .*: allow_pickle is True or False, not"),
    "home": (["'shared'", "None", "3"], "^the store .*: home is 'heap' or 'disk', not"),
    "clock": (["3", "'now'", "lambda: 'x'"], "^the store .*clock"),
}

BACKEND = {
    "key": (["3", "None", "'longg'", "{'k': 'longg'}"], "key|type"),
    "states": (["3", "[]", "{'n': 'long'}", "{3: N}"], "state"),
    "max_parallelism": (["0", "32769", *NO_COUNT], "max_parallelism is"),
    "key_group_range": (["3", "(1,)", "('a', 'b')", "(5, 4)", "(0, 128)"], "^key_group_range .*:"),
    "home": (["'heapp'", "None", "3"], "^home is 'heap' or 'shared' or 'disk', not"),
    "path": (["3", "''"], "^backend: path is the path of a"),
    "identity": (["3"], "^backend: identity is an Identity, not 3"),
    "limit_bytes": (NO_COUNT, "^backend: limit_bytes is"),
    "lock_timeout_ms": (NO_COUNT, "^backend: lock_timeout_ms is"),
    "uid": (["3", "None"], "^backend: uid is a string, not"),
    "create": (NO_FLAG, "^backend: create is True or False, not"),
    "namespace": (["'longg'", "3"], "namespace"),
    "timers": (NO_FLAG, "^backend: timers is True or False, not"),
    "where": (["3", "None"], "^backend: where is a string, not"),
}

#: What says how to begin, where there is a savepoint to begin with.
RESTORE = {
    "claim": (NO_FLAG, "^job 'j': claim is True or False, not"),
    "uid_map": (["3", "'a'", "[('a', 'b')]"], "^job 'j': uid_map is a mapping from"),
    "uid_map ": (["{'a': ''}", "{'': 'a'}", "{3: 'a'}", "{'a': None}"], "uid"),
}

SAVEPOINT = {
    "checkpoint": (["3", "''", "None"], "^savepoint: checkpoint is the path of a folder"),
    "destination": (["3", "''", "None"], "^savepoint: destination is the path of a folder"),
    "previous": (["3", "''"], "^savepoint: previous is the path of a folder"),
    "copy": (NO_FLAG, "^savepoint: copy is True or False, not"),
    "progress": (["3", "'yes'", "True"], "^savepoint: progress is a function, not"),
}

RESCALE = {
    "source": (["3", "''", "None"], "^rescale: source is the path of a folder, not"),
    "destination": (["3", "''", "None"], "^rescale: destination is the path of a folder, not"),
    "max_parallelism": (["'4'", "4.5", "True", "0", "32769"], "^rescale: max_parallelism is"),
    "progress": (["3", "'yes'", "True"], "^rescale: progress is a function, not"),
}

HISTORY = {
    "location": (["3", "''", "None"], "^history: location is the path of a folder, not"),
    "last": (["'4'", "4.5", "True", "0"], "^history: last is"),
    "since": (["3", "'2 hours'", "datetime(2026, 1, 1)"], "^history: since is a datetime with a"),
}

EXPORT = {
    "location": (["3", "''", "None"], "^export_state: a checkpoint's location is the path of a"),
    "destination": (["3", "''", "None"], "^export_state: destination is the path of a folder"),
    "uid": (["3", "''", "'x'"], "uid|operator"),
    "state": (["3", "'x'"], "state"),
    "epoch": (["'4'", "0", "True", "99"], "epoch"),
    "explode": ([*NO_FLAG, "True"], "^explode"),
    "timers": ([*NO_FLAG, "True"], "timers"),
    "expired": (NO_FLAG, "^expired is True or False, not"),
    "overwrite": (NO_FLAG, "^export_state: overwrite is True or False, not"),
    "progress": (["3", "'yes'", "True"], "^export_state: progress is a function, not"),
}

FOLDER = (["3", "''", "None"], "location is the path of a folder, not")
KEYS = (["3", "'x'", "1.5", "{'k': ['a']}"], "key")
NO_EPOCH = ["'4'", "0", "1.5", "True", "99"]
SELECTED = {
    "location": FOLDER,
    "uid": (["3", "''", "'x'"], "uid|operator"),
    "state": (["3", "'x'"], "state"),
    "keys": KEYS,
}
READ = {
    **SELECTED,
    "epoch": (NO_EPOCH, "epoch"),
    "key_groups": (["3", "'x'", "[999]", "[-1]"], "key.group"),
    "explode": ([*NO_FLAG, "True"], "^explode"),
    "timers": ([*NO_FLAG, "True"], "timers"),
    "accumulators": (NO_FLAG, "^accumulators is True or False"),
    "defaults": (NO_FLAG, "^defaults is True or False"),
    "expired": (NO_FLAG, "^expired is True or False"),
}
CHANGES = {
    **SELECTED,
    "from_epoch": (["'4'", "-1", "1.5", "True", "None", "99"], "from_epoch"),
    "to_epoch": (NO_EPOCH, "to_epoch|does not hold epoch 99"),
}
CONNECT = {
    "location": FOLDER,
    "epoch": (NO_EPOCH, "epoch"),
    "cache_bytes": (NO_COUNT, rf"^connect: cache_bytes ({COUNT}|is)"),
    "token": (["'x'", "3"], "^connect: a token is for a server"),
}
LIMITS = (
    "requests threads streams statements followers leases connections statement_bytes keys "
    "body_bytes rows document_rows document_bytes seconds stream_seconds stall_seconds"
)
NO_FUNCTION = ["3", "'yes'", "True"]
JOBS = (["0", "'2'", "1.5", "257"], "jobs is")

HARNESS = {
    "function": (["Counts", "print", "None", "3"], "is no KeyedProcessFunction or Vectorized"),
    "key": (["3", "None", "''", "[]", "'kk'", "['k', 3]", "{'k': 'longg'}"], "key|type"),
    "schema": (["3", "'k'", "[]", "{'k': 'longg'}"], "^operator 'harness': (column|schema)"),
    "columns": (["3", "'k'", "[]"], "^the harness's input: (columns|schema)"),
    "event_time": (["3", "'kk'", "''"], "event_time"),
    "allowed_delay": (["'x'", "-1", "1.5"], "^(operator 'harness': )?allowed_delay"),
    "side_outputs": (["'x'", "3", "None", "[3]", "[None]", "{'x': 3}"], "'harness'.* side.output"),
    "late": (
        ["3", "None", "''"],
        "^operator 'harness': late is a string, not .*, but 'process', 'd",
    ),
    "processing_time": (["'x'", "None", "1.5"], "^processing_time is an int, in milliseconds"),
    "parallelism": (["0", "129", *NO_COUNT], "parallelism"),
    "max_parallelism": (["0", *NO_COUNT], "max_parallelism is"),
    "batch_rows": (["0", *NO_COUNT], "^operator 'harness': batch_rows is"),
    "initial_state": (["3", "'x'", "{'x': [1]}"], "initial_state is a pyarrow|'k' is not among x"),
    "initial_timers": (["3", "'x'", "{'k': [1]}"], "initial_timers is a pyarrow|no column 'timer"),
    "initial_rows": (["3", "'x'", "[3]"], "^the harness's input"),
    "uid": (["3", "None", "''"], "^Harness: uid is a string, not"),
    "allow_pickle": (NO_FLAG, "^operator 'harness': allow_pickle is True or False"),
    "max_ahead": (NO_LENGTH, "^operator 'harness': max_ahead"),
    "invalid": (["3", "''", "'drop'", "'process'"], "^operator 'harness': invalid"),
    "on_invalid": (["'x'", "None", "3"], "^operator 'harness': on_invalid.*'drop'.*'fail'"),
    "table_home": (["'shm'", "None", "3"], "^operator 'harness': table_home is 'heap' or 'disk'"),
}

NAMES = {
    "datetime": datetime,
    "io": io,
    "ps": ps,
    "pd": pd,
    "pa": pa,
    "Counts": Counts,
    "N": ps.ValueState("long"),
    "print": print,
}


def write(df: Any, epoch: int) -> None: ...


SINKS = {
    "ParquetSink": ParquetSink,
    "Sink": Sink,
    "foreach_epoch": foreach_epoch,
    "register_sink": register_sink,
    "write": write,
}


def restored(**given: Any) -> None:
    Job("j", given.pop("checkpoint"), **given)


def job_savepoint(checkpoint: Path, **given: Any) -> None:
    Job("j", checkpoint).savepoint(**given)


def harness(**given: Any) -> None:
    with Harness(**given) as made:
        made.process([{"k": 1}])


#: What is made has to be opened, used or closed.
ACTS: dict[Any, Callable[..., object]] = {
    ps.open: lambda **given: ps.open(**given).close(),
    ps.KeyedStateBackend: lambda **given: ps.KeyedStateBackend(**given).open(),
    Harness: harness,
}

#: Of each function, what is given beside the wrong argument, and what is wrong. `c` is a store, `f`
#: a file of it, `new` and `out` are not there.
CALLS: dict[Any, tuple[dict[str, str], dict[str, tuple[list[str], str]]]] = {
    Job: ({"name": "'j'", "checkpoint": "new"}, JOB),
    restored: ({"checkpoint": "new", "restore": "out"}, RESTORE),
    ps.open: ({"path": "new", "key": "'long'", "states": "{'n': N}"}, STORE),
    ps.KeyedStateBackend: ({"key": "'long'"}, BACKEND),
    Harness: ({"function": "Counts()", "key": "'k'", "event_time": "'k'"}, HARNESS),
    ps.savepoint: ({"checkpoint": "new", "destination": "out"}, SAVEPOINT),
    job_savepoint: (
        {"checkpoint": "new", "destination": "out"},
        {name: SAVEPOINT[name] for name in ("destination", "previous", "copy")},
    ),
    ps.rescale: ({"source": "new", "destination": "out", "max_parallelism": "256"}, RESCALE),
    ps.history: ({"location": "c"}, HISTORY),
    ps.export_state: ({"location": "c", "destination": "out"}, EXPORT),
    ps.read_state: ({"location": "c"}, READ),
    ps.scan_state: ({"location": "c"}, READ),
    ps.connect: ({"location": "c"}, CONNECT),
    ps.changes: ({"location": "c", "from_epoch": "1"}, CHANGES),
    ps.scan_changes: ({"location": "c", "from_epoch": "1"}, CHANGES),
    ps.state_metadata: ({"location": "c"}, {"location": FOLDER, "epoch": (NO_EPOCH, "epoch")}),
    ps.describe: ({"location": "c"}, {"location": FOLDER}),
    ps.verify: (
        {"location": "c"},
        {
            "location": FOLDER,
            "jobs": JOBS,
            "progress": (NO_FUNCTION, "^verify: progress is a function, not"),
        },
    ),
    ps.repair: (
        {"location": "c"},
        {
            "location": FOLDER,
            "dry_run": (NO_FLAG, "^repair: dry_run is True or False"),
            "confirm": (NO_FUNCTION, "^repair: confirm is a function"),
            "job": (["3", "''", "True"], "^repair: job is a string"),
            "owner_is_gone": (NO_FLAG, "^repair: owner_is_gone is True or False"),
            "jobs": JOBS,
            "progress": (NO_FUNCTION, "^repair: progress is a function"),
        },
    ),
    ps.collect: (
        {"location": "c"},
        {
            "location": FOLDER,
            "dry_run": (NO_FLAG, "dry_run is True or False"),
            "older_than": (["'x'", "-1", "None", "''"], "older_than"),
            "owner_is_gone": (NO_FLAG, "owner_is_gone is True or False"),
        },
    ),
    ps.write_state: (
        {"destination": "out", "operators": "{}"},
        {
            "destination": (["3", "''", "None"], "^write_state: .* is the path of a folder, not"),
            "operators": (["3", "[]", "None", "{'a': 3}", "{3: None}"], "^write_state"),
            "base": (["3", "''", "'nope'"], "write_state: base|nope"),
            "remove": (["3", "['nope']"], "write_state: remove"),
            "max_parallelism": (["'4'", "0", "4.5", "32769"], "^write_state: max_parallelism is"),
            "parallelism": (["'4'", "0", "4.5", "32769"], "^write_state: parallelism is"),
            "job": (["3", "''", "None"], "^write_state: job"),
        },
    ),
    ps.verify_file: (
        {"source": "f"},
        {
            "source": (["3", "None", "'nope'"], "state file is a path|nope: cannot be opened"),
            "expected": (["3", "'x'", "[]"], "^verify_file: expected is a FileInfo, not"),
        },
    ),
    ps.merge_files: (
        {"sources": "[f]", "out": "io.BytesIO()"},
        {
            "sources": (
                ["3", "'x'", "None", "[]", "[3]"],
                "^merge_files: sources|^a state file is",
            ),
            "out": (["3", "'x'", "None"], "^merge_files: out is a binary file object, not"),
            "lineage": (["3", "'x'", "(1, 2)"], "^merge_files: lineage is a Lineage, not"),
            "first_key_group": (["'x'", "1.5", "-1"], "^merge_files: first_key_group is"),
            "last_key_group": (["'x'", "1.5", "-1"], "^merge_files: last_key_group is"),
            "kind": (["3", "None", "'bas'"], "^merge_files: kind is 'base' or 'delta', not"),
            "states": (["3", "'n'"], "^merge_files: states is a collection of names, not"),
            "since": (["3", "'x'", "None", "{3: 1}"], "^merge_files: since"),
            "max_parallelism": (["'4'", "4.5", "3"], "^merge_files: (max_parallelism is|128 key)"),
            "expiring": (["3", "'x'"], "^merge_files: expiring is an Expiring, not"),
            "block_bytes": (["'x'", "4.5", "-1", "4095", "65537"], "^merge_files: block_bytes is"),
        },
    ),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two epochs."""
    folder = tmp_path_factory.mktemp("arguments") / "c"
    with ps.open(folder, key="long", states={"n": ps.ValueState("long")}) as made:
        for value in (1, 2):
            made.set_current_key(1)
            made["n"].update(value)
            made.checkpoint()
    return folder


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_every_wrong_argument(function: Any, store: Path, tmp_path: Path) -> None:
    """Each has its line, of pystate's own, and leaves nothing."""
    given, table = CALLS[function]
    if function not in (restored, job_savepoint):
        assert set(inspect.signature(function).parameters) == {name.strip() for name in table}
    before = sorted(store.rglob("*"))
    own = {"c": store, "f": next(store.rglob("*.delta"))}
    own |= {"new": tmp_path / "new", "out": tmp_path / "out"}
    found = {}
    for name, (bads, message) in table.items():
        for bad in bads:
            arguments = {at: eval(text, {**NAMES, **own}) for at, text in given.items()}
            arguments[name.strip()] = eval(bad, dict(NAMES))
            try:
                ACTS.get(function, function)(**arguments)
                said = "<no error>"
            except PystateError as error:
                said = str(error)
            if "\n" in said or not re.search(message, said):
                found[name, bad] = said
            assert name == "clock" or list(tmp_path.iterdir()) == [], (name, bad)
    assert not found
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("h.process(3)", "^the harness's input is rows: dicts, "),
        ("h.process(None)", "^the harness's input is rows: dicts, "),
        ("h.process([3])", "does not say which|is no row of"),
        ("h.process([{'K': 1}])", "the columns K, not k"),
        ("h.advance_watermark('x')", "^the watermark is an int"),
        ("h.advance_watermark(None)", "^the watermark is an int"),
        ("h.drain(3)", "^operator 'harness': drain takes the watermark to its end"),
        ("h.advance_processing_time('1 hour')", "^the processing time is an int"),
        ("h.fail_after()", "^fail_after takes"),
        ("h.fail_after('x')", "^fail_after: the number is a whole number"),
        ("h.fail_after(-1)", "^fail_after: the number is -1"),
        ("h.fail_at('seel')", "'seal' or 'publish', not 'seel' .*; did you mean 'seal'"),
        ("h.side_output('sied')", "declared: 'side'; did you mean 'side'"),
        ("h.side_output(None)", "declared: 'side'$"),
        ("h.state('N', 1)", "no state 'N'; declared: 'n'; did you mean 'n'"),
        ("h.state(None, 1)", "no state None; declared: 'n'$"),
        ("h.state('n', 'x')", "key column 'k'"),
        ("h.next_timer('evnt')", "'event' or 'processing', not 'evnt' .* mean 'event'"),
        ("h.next_timer(None)", "'event' or 'processing', not None"),
        ("Harness.restore(3, Counts())", r"^restore takes what snapshot\(\)"),
        ("Harness.restore(h.snapshot(), Counts)", "pass an instance"),
        ("Harness.restore(h.snapshot(), Counts(), parallelism='2')", "parallelism is a whole num"),
    ],
)
def test_methods_of_a_harness(call: str, message: str) -> None:
    with Harness(Counts(), key="k", side_outputs=["side"]) as harness:
        harness.process([{"k": 1}])
        refused(lambda: eval(call, {**NAMES, "h": harness, "Harness": Harness}), message)
        assert harness.epoch == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("s['N']", "no state 'N'; declared: 'n', 'l', 'm', 'r', 'a'; did you mean 'n'"),
        ("s[None]", "no state None; declared"),
        ("s['n'].update('x')", "state 'n' is long"),
        ("s['n'].values([1])", r"expected a KeyBatch, .*make one with keys\(...\)"),
        ("s['l'].add(None)", "state 'l': None is no item"),
        ("s['l'].add('x')", "state 'l' is long"),
        ("s['l'].add_all(3)", "state 'l': add_all takes items"),
        ("s['l'].update(3)", "state 'l': update takes items"),
        ("s['l'].append(5)", r"'l': append\(keys, items\) .*current key write add\(item\)$"),
        ("s['l'].extend([5])", r"'l': extend\(keys, lists\) .*key write add_all\(items\)$"),
        ("s['n'].add(3)", r"'n': add\(keys, values\) .*key write update\(value\(\) \+ number\)$"),
        ("s['m'].put(1, 2)", "state 'm'.* string"),
        ("s['m'].put(None, 'a')", "state 'm': None is no map key"),
        ("s['m'].get(1)", "state 'm'.* string"),
        ("s['m'].put_all(3)", "state 'm': put_all takes a dict, or pairs .* got 3"),
        ("s['m'].put_all(['a'])", "state 'm': put_all takes a dict, or pairs .* got 'a'"),
        ("s['m'].put_all([('a', 1, 2)])", "state 'm': put_all takes a dict"),
        ("s['m'].put_entries(1, 2, 3)", "expected a KeyBatch"),
        ("s['r'].add('x')", "state 'r' is long"),
        ("s['a'].add('x')", "state 'a' is double"),
        ("s['a'].results(3)", "expected a KeyBatch"),
        ("s.delete('x')", "key column 'key'"),
        ("s.keys('x')", "key column 'key'"),
        ("s.keys(None)", "key column 'key'"),
        ("s.set_current_key('x')", "long"),
        ("s.close(checkpoint='yes')", "^close: checkpoint is True or False, not 'yes'"),
        ("s.keys([1]).select(5)", "there is no row 5"),
        ("s.keys([1]).select('a')", "number of a row in the key batch, not 'a'"),
        ("s.keys([1]).select(None)", "number of a row in the key batch, not None"),
        ("s.keys([1]).select(0.0)", "number of a row in the key batch, not 0.0"),
        ("s.keys([1]).key_at(9)", "there is no row 9 in a key batch of 1"),
        ("s.keys([1]).key_at('x')", "key_at: the row is a whole number"),
        ("s.keys([1]).in_namespaces(3)", "namespaces"),
    ],
)
def test_a_stores_handles(call: str, message: str, tmp_path: Path) -> None:
    states: dict[str, Any] = {
        "n": ps.ValueState("long"),
        "l": ps.ListState("long"),
        "m": ps.MapState("string", "long"),
        "r": ps.ReducingState("long", max),
        "a": ps.AggregatingState(ps.Mean()),
    }
    with ps.open(tmp_path / "store", key="long", states=states) as store:
        store.set_current_key(1)
        refused(lambda: eval(call, {"s": store}), message)
        assert len(store) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("b.rollback('x')", "^rollback: back is a whole number, not 'x'"),
        ("b.rollback(None)", "^rollback: back is a whole number, not None"),
        ("b.rollback(9)", "roll back over 9"),
        ("b.lineage('x')", "^lineage: back is a whole number"),
        ("b.seal(3)", "^seal: lineage is a Lineage, not 3"),
        ("b.register('x', 3)", "state 'x': expected a declaration, got 3"),
        ("b.register(3, N)", "^a state's name is a string, not 3"),
        ("b.register_timer('evnt', 1)", "'event' or 'processing', got 'evnt'"),
        ("b.register_timer('event', None)", "a whole number of milliseconds"),
        ("b.register_timers(3, 'event', 1)", "expected a KeyBatch"),
        ("b.due_timers('evnt', 1)", "'event' or 'processing', got 'evnt'"),
        ("b.due_timers('event', None)", "a whole number of milliseconds"),
        ("b.set_clock(processing_time='x')", "^set_clock: processing_time, in milliseconds"),
        ("b.set_clock(watermark=1.5)", "^set_clock: watermark, in milliseconds"),
        ("b.restore(3)", "^restore takes a list of state files, not 3"),
        ("b.restore('x')", "^restore takes a list of state files, not 'x'"),
        ("b.restore([3])", "^a state file is a path or a binary file object, not 3"),
    ],
)
def test_methods_of_a_backend(call: str, message: str) -> None:
    with ps.KeyedStateBackend("long", states={"n": NAMES["N"]}, timers=True) as backend:
        backend.open()
        backend.set_current_key(1)
        refused(lambda: eval(call, {**NAMES, "b": backend}), message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ps.ValueState(None)", "ValueState: None is no type"),
        ("ps.ValueState('longg')", "'longg' is not supported; supported: .*; did you mean 'long'"),
        ("ps.ValueState(int)", "for int write 'long'"),
        ("ps.ValueState('long', default='x')", "the default"),
        ("ps.ValueState('long', ttl=5)", "ttl is a StateTtl"),
        ("ps.ListState(3)", "ListState: 3 is no type"),
        ("ps.MapState(object, 'long')", "MapState"),
        ("ps.MapState('long', None)", "MapState: None is no type"),
        ("ps.ReducingState('long', 'max')", "ReducingState: 'max' is no function of two values"),
        ("ps.ReducingState('long', None)", "ReducingState: None is no function of two values"),
        ("ps.AggregatingState('mean')", "AggregatingState: 'mean' is no Aggregator"),
        ("ps.AggregatingState(ps.Mean)", "pass an object of it"),
        ("ps.AggregatingState(ps.mean('x'))", "is no Aggregator"),
        ("ps.AggregatingState(ps.Mean(), 'string')", "takes numbers, not string"),
        ("ps.StateTtl()", "give a duration"),
        ("ps.StateTtl('x')", "length of time"),
        ("ps.StateTtl(hours='2')", "hours='2' is no number of hours"),
        ("ps.StateTtl(hours=None)", "hours=None is no number of hours"),
        ("ps.StateTtl(hours=-1)", "between"),
        ("ps.StateTtl(5, time='evnt')", "or 'event', got 'evnt'; did you mean 'event'"),
        ("ps.StateTtl(5, update=None)", "got None"),
        ("ps.TopK('3')", "TopK: k is an int, 1 to 4096; got '3'"),
        ("ps.ApproxDistinct(None)", "ApproxDistinct: precision is an int"),
        ("ps.Variance('x')", "Variance: sample is True or False"),
        ("ps.count(3)", r"count\(\) takes the name of a column"),
        ("ps.sum(None)", r"sum\(\) takes the name of a column"),
        ("ps.mean('')", r"mean\(\) takes the name of a column"),
        ("ps.hash_keys(3)", "^hash_keys takes a list of key columns"),
        ("ps.hash_keys(None)", "^hash_keys takes a list of key columns"),
        ("ps.hash_keys(['a'])", "^hash_keys: key column 0 is an array of keys, not 'a'"),
        ("ps.merge_files(3, None)", "^merge_files: sources is a list of state files, not 3"),
        ("ps.merge_files([], None)", "merge"),
        ("ps.verify_file(3)", "^a state file is a path or a binary file object, not 3"),
        ("ps.verify_file(None)", "^a state file is a path or a binary file object, not None"),
        ("ParquetSink(3)", "^ParquetSink: path is the path of a folder, not 3"),
        ("ParquetSink(None)", "^ParquetSink: path is the path of a folder, not None"),
        ("ParquetSink('')", "^ParquetSink: path is the path of a folder, not ''"),
        ("ParquetSink('/o', partition_by=3)", "partition_by is the name of a column, or a list"),
        ("ParquetSink('/o', partition_by=None)", "partition_by is the name of a column, or a l"),
        ("ParquetSink('/o', partition_by=['a', 3])", "^ParquetSink.'/o'.: partition_by has 3"),
        ("ParquetSink('/o', partition_by='')", "partition_by has '' of type str, which is not"),
        ("ParquetSink('/o', partition_by=['a', 'A'])", "partition_by names a more than once"),
        ("ParquetSink('/o', partition_by='.a')", "begin with a dot are hidden"),
        ("foreach_epoch(3)", "^foreach_epoch takes a function of an epoch's rows and its number"),
        ("foreach_epoch(lambda df: df)", "^foreach_epoch: .* does not take these: it is f.df.$"),
        ("foreach_epoch(write, name=3)", "^foreach_epoch: name is a string, not 3"),
        ("foreach_epoch(write, name='')", "^foreach_epoch: name is a string, not ''"),
        ("register_sink(3)", "^register_sink takes a sink, not 3"),
        ("register_sink(Sink)", "^register_sink takes a sink, not .*; pass an object of it"),
        ("register_sink(Sink())", "^register_sink: Sink.name is '' of type str: give the sink a"),
    ],
)
def test_declarations_and_functions(call: str, message: str) -> None:
    refused(lambda: eval(call, {**NAMES, **SINKS}), message)


def test_an_unknown_state_is_a_key_error_too() -> None:
    with ps.KeyedStateBackend("long") as backend, pytest.raises(KeyError) as raised:
        backend["n"]
    assert str(raised.value) == "no state 'n'; declared: none"


def test_values_are_shown_in_one_line() -> None:
    assert shown(None) == "None"
    assert shown("a\nb") == "'a\\nb' of type str"
    frame = shown(pd.DataFrame({"a": range(100)}))
    assert "\n" not in frame and frame.endswith(" of type pandas.core.frame.DataFrame")
    assert nearest("origin", ["tailnum"]) == "" and nearest(None, ["tailnum"]) == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("r[3]", r"^reader\[uid\]: uid is a string, not 3"),
        ("r['x']", "has no operator 'x' in epoch 1; it has 'embedded'"),
        ("r.at(None)", "^at: epoch is a whole number"),
        ("r.at(9)", "does not hold epoch 9; it has 1 to 1"),
        ("r.wait_for()", "^wait_for takes an epoch, or a position"),
        ("r.wait_for(epoch=1, position='x')", "^wait_for takes an epoch, or a position"),
        ("r.wait_for(epoch='1')", "^wait_for: epoch is a whole number"),
        ("r.wait_for(position=b'x')", "^wait_for: position is a run's key, such as"),
        ("r.wait_for(position=('x', -1))", "^wait_for: position: batch is -1"),
        ("r.wait_for(epoch=1, timeout='x')", "^wait_for: timeout='x': write a length of time"),
        ("o.get(3)", "^key column 'key'"),
        ("o.get(['x'])", "^key column 'key' is long"),
        ("o.get([1], states='n')", "^get: states is a list of names, not 'n'"),
        ("o.get([1], states=['N'])", "has no column 'N'; it has 'n', 'm'; did you mean 'n'"),
        ("o.get([1], states=['n', 'n'])", "^get: states: 'n' is there twice"),
        ("o.get([1], namespaces=[1])", "has no namespaces"),
        ("o.entries('n', 1)", "'n' of operator 'embedded' is neither a list nor a map"),
        ("o.entries(3, 1)", "^entries: state is a string"),
        ("o.entries('m', 'x')", "^key column 'key' is long"),
        ("o.entries('m', 1, from_=1.5)", "^entries: from_ is string"),
        ("o.entries('m', 1, to=b'x')", "^entries: to is string"),
        ("o.scan(columns='n')", "^scan: columns is a list of names"),
        ("o.scan(columns=['key', 'N'])", "has no column 'N'; it has 'key', 'n', 'm'"),
        ("o.scan(where=3)", "^where is a list of conditions, not 3"),
        ("o.scan(where=[[]])", "^where: .* is no list of conditions"),
        ("o.scan(where=[('n', '>', 1), 3])", "^where: 3 of type int is no condition"),
        ("o.scan(where=[('n', 'like', 'x')])", "'like' is no comparison of column 'n'; there are"),
        ("o.scan(where=[('n', 'in', 3)])", "column 'n' of operator 'embedded': 'in' takes a list"),
        ("o.scan(where=[('n', '>', 'x')])", "column 'n' of operator 'embedded' is long"),
        ("o.scan(where=[('n', '<', None)])", "nothing is less or more than None"),
        ("o.scan(where=[('m', '==', 3)])", "column 'm' of operator 'embedded' is nested"),
        ("o.scan(key_groups=[999])", "key group"),
        ("o.timers(domain='evnt')", "timers: domain is 'event' or 'processing'"),
        ("o.timers(until='x')", "until"),
        ("r.changes('x')", "^changes: since is a whole number"),
        ("r.changes(0, uids='embedded')", "^uids is a list of operators' uids"),
        ("r.changes(0, uids=[])", "^uids has no operator: leave it out"),
        ("r.follow('x')", "^follow: since is a whole number"),
        ("r.follow(poll='x')", "^follow: poll='x': write a length of time"),
        ("r.follow(lease='x')", "^lease: duration='x': write a length of time"),
        ("r.follow(0, lease=True)", "^follow: nothing is kept of epoch 0"),
        ("r.lease('2 days')", "^lease: duration is a day at most"),
        ("o.changes('x')", "^changes: since is a whole number"),
        ("r.sql(3)", "^sql: the statement is a string, such as"),
        ("r.sql('select 1', 3)", "^sql: parameters is a list of values"),
        ("r.sql('select 1', timeout='x')", "^sql: timeout='x': write a length of time"),
        ("r.sql('select 1', memory_bytes=3)", "^sql: memory_bytes is 3, and must be at least"),
        ("r.sql('select 1', threads='x')", "^sql: threads is a whole number"),
        ("r.scan_sql('select 1', isolated=1)", "^sql: isolated is True or False"),
    ],
)
def test_methods_of_a_reader(call: str, message: str, tmp_path: Path) -> None:
    states: dict[str, Any] = {"n": ps.ValueState("long"), "m": ps.MapState("string", "long")}
    with ps.open(tmp_path, key="long", states=states) as store:
        store.checkpoint()
        store.checkpoint()
    with ps.connect(tmp_path) as reader:
        names = {**NAMES, "r": reader, "o": reader["embedded"]}
        refused(lambda: eval(call, names), message)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (f"Limits({name}={wrong})", f"^Limits: {name} .*({COUNT})")
            for name in LIMITS.split()
            for wrong in ("0", *NO_COUNT)
        ),
        *(
            (f"ServeOptions(host={wrong})", "host is a string, not")
            for wrong in ("3", "''", "None")
        ),
        *((f"ServeOptions(port={wrong})", f"port .*({COUNT})") for wrong in ("65536", *NO_COUNT)),
        *(
            (f"ServeOptions({name}={wrong})", f"^ServeOptions: {name} is a string, not")
            for name in ("token_file", "cert", "key")
            for wrong in ("3", "''")
        ),
        ("ServeOptions(allow_hosts='host')", "^ServeOptions: allow_hosts is a tuple of names, not"),
        ("ServeOptions(allow_hosts=(3,))", "^ServeOptions: allow_hosts is a string, not 3"),
        *((f"ServeOptions(cache_bytes={wrong})", f"cache_bytes .*({COUNT})") for wrong in NO_COUNT),
        *(
            (f"ServeOptions(refresh_seconds={wrong})", "refresh_seconds is a number from 0 on, not")
            for wrong in ("'x'", "-1", "True", "None", "float('nan')")
        ),
        *(
            (f"ServeOptions(limits={wrong})", "^ServeOptions: limits is of the class Limits, not")
            for wrong in ("3", "None", "Limits")
        ),
    ],
)
def test_options_of_a_server(call: str, message: str) -> None:
    for package in ("starlette", "uvicorn", "httptools"):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    from pystate.serve.limits import Limits
    from pystate.serve.server import ServeOptions

    refused(lambda: eval(call, {"Limits": Limits, "ServeOptions": ServeOptions}), message)


def test_all_limits_of_a_server_are_tested() -> None:
    limits = pytest.importorskip("pystate.serve.limits", exc_type=ImportError).Limits
    assert [*limits.__dataclass_fields__] == LIMITS.split()
