"""The history of epochs: few files, whoever stops where, and damage that costs what it hits."""

from __future__ import annotations

import json
import logging
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint import epoch_log
from pystate.checkpoint.epoch_log import (
    _FAN_IN,
    HISTORY,
    EpochLog,
    EpochRecord,
    OperatorRecord,
    Totals,
    add_up,
    log_epoch,
    read_records,
    without_epochs_after,
    written_per_byte,
)
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CorruptFileError, FencedError, NewerFormatError
from tests.drivers import CrashError, Interrupted, MemoryStorage, World

OPERATOR = OperatorRecord("ü[op]", 4, 7, 6, None, 5, 4096, 3, 2, 1, 99, 0.5, 1.25, 2.0, 3.0)


def record(epoch: int, **other: object) -> EpochRecord:
    made = EpochRecord(
        epoch=epoch,
        published_ms=1000 * epoch,
        processing_time_ms=1000 * epoch - 5,
        watermark_ms=None if epoch % 2 else -epoch,
        query_id=None,
        batch_id=None,
        run_key=f"key {epoch}\n",
        batches=1,
        evaluations=2,
        term=1,
        host="host",
        publish_ms=1.5,
        commit_ms=0.0,
        total_ms=12.125,
        merged_bytes=0,
        operators=(OPERATOR, replace(OPERATOR, uid="z", late_rows=9)),
    )
    return replace(made, **other)  # type: ignore[arg-type]


def memory(world: World) -> MemoryStorage:
    return MemoryStorage(world, lambda kind, path: None)


def epochs(world: World) -> list[int]:
    found = read_records(memory(world))
    assert not found.problems
    assert all(r == record(r.epoch, term=r.term) for r in found.records)
    return [r.epoch for r in found.records]


def write(log: EpochLog, first: int, last: int, term: int = 1) -> None:
    for epoch in range(first, last + 1):
        if log.add(record(epoch, term=term)):
            log.tidy(epoch, lambda: None)


def test_a_record_comes_back_as_it_was() -> None:
    assert EpochRecord.decode(record(3).encode(), "x") == record(3)
    assert len(record(10**6).encode()) < 350
    assert EpochRecord.decode(record(1, total_ms=0.12345).encode(), "x").total_ms == 0.123
    marked = record(2, operators=(replace(OPERATOR, watermark_ms=-7),))
    assert EpochRecord.decode(marked.encode(), "x") == marked
    assert record(1).total("rows_in") == 14 and record(1).total("late_rows") == 9
    assert record(1).longest("write_ms") == 3.0 and record(1, operators=()).longest("seal_ms") == 0


@pytest.mark.parametrize("each", [1, 5, 1500])
def test_many_epochs_in_few_files(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers that end after so many epochs; the oldest records go, and no newer one."""
    sizes = [size // 8 for size in epoch_log._SIZES]
    monkeypatch.setattr(epoch_log, "_SIZES", sizes)
    world, most, kept = World(), 0, 300
    for first in range(1, 1501, each):
        write(EpochLog(memory(world), kept), first, min(first + each - 1, 1500))
        most = max(most, len(world.files))
    found = epochs(world)
    largest = (sizes[-1] + _FAN_IN * sizes[-1]) // len(record(1000).encode())
    assert found == list(range(found[0], 1501)) and kept <= len(found) <= kept + largest
    assert len(found) < 1500 and most < 32


def test_no_record_is_lost_where_files_are_merged() -> None:
    world = World()
    for epoch in range(1, 150):
        write(EpochLog(memory(world)), epoch, epoch)
        assert epochs(world) == list(range(1, epoch + 1))


def begun(count: int) -> World:
    world = World()
    for epoch in range(1, count + 1):
        write(EpochLog(memory(world)), epoch, epoch)
    return world


@pytest.mark.parametrize("before", [6, 7, 8, 63, 70])
def test_a_kill_at_every_step_costs_at_most_the_newest_record(before: int) -> None:
    start = begun(before)
    for left in range(100):
        world = start.copy()
        try:
            write(EpochLog(MemoryStorage(world, Interrupted(left))), before + 1, before + 1)
        except CrashError:
            assert epochs(world) in (list(range(1, before + 1)), list(range(1, before + 2)))
            write(EpochLog(memory(world)), before + 2, before + 2)
            assert set(range(1, before + 3)) - set(epochs(world)) <= {before + 1}
        else:
            break
    assert 2 <= left < 99


@pytest.mark.parametrize("before", [7, 8, 15, 63])
def test_another_driver_between_any_two_steps(before: int) -> None:
    """A driver that is delayed where it merges finds that its successor has merged the same."""
    start = begun(before)
    for left in range(60):
        world = start.copy()

        def successor(world: World = world) -> None:
            for epoch in range(before + 2, before + 20):
                write(EpochLog(memory(world)), epoch, epoch, term=2)

        step = Interrupted(left, successor)
        write(EpochLog(MemoryStorage(world, step)), before + 1, before + 1)
        if not step.happened:
            break
        assert epochs(world) == list(range(1, before + 20)), left
        assert len(world.files) < 32
    assert 2 <= left < 59


@pytest.mark.parametrize("merged", [2, 8])
def test_a_reader_beside_a_driver_that_merges(merged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_log, "_FAN_IN", merged)
    # Whether a listing misses what is merged beside it depends on names that are drawn.
    for left in [*range(40), *[1] * 60]:
        world = begun(14)

        def driver(world: World = world) -> None:
            for epoch in range(15, 25):
                write(EpochLog(memory(world)), epoch, epoch)

        found = read_records(MemoryStorage(world, Interrupted(left, driver)))
        assert not found.problems
        assert [r.epoch for r in found.records][:14] == list(range(1, 15)), left


def test_a_driver_that_was_overtaken_merges_nothing() -> None:
    world = begun(8)

    def check() -> None:
        raise FencedError("overtaken")

    log = EpochLog(memory(world))
    assert log.add(record(9))
    before = dict(world.files)
    with pytest.raises(FencedError):
        log.tidy(9, check)
    assert world.files == before


def test_each_flipped_byte_costs_one_record(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    log = EpochLog(storage)
    for epoch in (1, 2, 3):
        log.add(record(epoch, operators=()))
    [path] = (tmp_path / HISTORY).iterdir()
    data = path.read_bytes()
    for place in range(len(data)):
        for flip in (1, 0x20, 0x80):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            found = read_records(storage)
            assert [r.epoch for r in found.records] in ([1, 2], [1, 3], [2, 3], [1], [3]), place
            assert all(r == record(r.epoch, operators=()) for r in found.records)
            [(name, problem)] = found.problems
            assert name == f"{HISTORY}/{path.name}" and isinstance(problem, CorruptFileError)
            assert "damaged" in str(problem) and path.name in str(problem)


def test_each_torn_file_keeps_its_whole_lines(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    log = EpochLog(storage)
    for epoch in (1, 2, 3):
        log.add(record(epoch))
    [path] = (tmp_path / HISTORY).iterdir()
    data = path.read_bytes()
    for end in range(len(data)):
        path.write_bytes(data[:end])
        found = read_records(storage)
        whole = data[:end].count(b"\n")
        assert [r.epoch for r in found.records] == [1, 2, 3][:whole]
        assert len(found.problems) == (not data[:end].endswith(b"\n") and end > 0)


def damaged(line: bytes) -> bytes:
    return line.replace(b"host", b"hosf")


def later(line: bytes) -> bytes:
    data = json.dumps([7, "all", "is", "new"]).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


@pytest.mark.parametrize(("how", "error"), [(damaged, CorruptFileError), (later, NewerFormatError)])
def test_what_cannot_be_read_stays_where_it_is(how: object, error: type[Exception]) -> None:
    world = begun(4)
    broken = sorted(world.files)[2]
    world.files[broken] = how(world.files[broken])  # type: ignore[operator]
    for epoch in range(5, 100):
        write(EpochLog(memory(world)), epoch, epoch)
    found = read_records(memory(world))
    assert [r.epoch for r in found.records] == [1, 2, *range(4, 100)]
    [(path, problem)] = found.problems
    assert path == broken and type(problem) is error
    # A file ends where the next one begins, by which old ones are found.
    firsts = [int(name.split("/")[1].split("-")[0]) for name in sorted(world.files)]
    for name, following in zip(sorted(world.files), firsts[1:], strict=False):
        lines = world.files[name].splitlines(keepends=True)
        found_in = [EpochRecord.decode(line, name).epoch for line in lines if name != broken]
        assert all(epoch < following for epoch in found_in), name
    assert len(world.files) < 40


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for name in ("notes.txt", "00000001-zz.epochs", ".00000001-123456789abc.epochs.0.tmp"):
        (tmp_path / HISTORY).mkdir(exist_ok=True)
        (tmp_path / HISTORY / name).write_bytes(b"x")
    for epoch in range(1, 30):
        write(EpochLog(storage, 5), epoch, epoch)
    assert not read_records(storage).problems
    names = {path.name for path in (tmp_path / HISTORY).iterdir()}
    assert {"notes.txt", "00000001-zz.epochs", ".00000001-123456789abc.epochs.0.tmp"} <= names


def test_epochs_that_are_given_up_are_forgotten() -> None:
    world = begun(20)
    broken = sorted(world.files)[-1]
    world.files[broken] = damaged(world.files[broken])
    storage = memory(world)
    for path in without_epochs_after(storage, 11):
        world.files.pop(path)
    assert epochs(world) == list(range(1, 12))
    assert without_epochs_after(storage, 11) == []
    # Where it was interrupted, it is done again.
    without_epochs_after(storage, 6)
    for path in without_epochs_after(storage, 6):
        world.files.pop(path)
    assert epochs(world) == list(range(1, 7))


def test_records_of_version_1_have_no_watermarks_of_operators() -> None:
    values = json.loads(record(3).encode().partition(b" ")[2])
    # Version 3 has what went through the pipeline, before the operators.
    values[0], values[-1] = 1, [operator[:-12] for operator in values[-1]]
    assert decoded([*values[:-4], values[-1]]) == record(3)


def test_a_record_has_what_tells_the_state_since_version_4() -> None:
    said = replace(OPERATOR, fingerprint="ab" * 18, since=(("n", 2), ("s#f", 4)))
    told = replace(record(3), operators=(said,))
    values = json.loads(told.encode().partition(b" ")[2])
    assert decoded(values) == told
    values[0], values[-1] = 3, [operator[:-10] for operator in values[-1]]
    assert decoded(values) == replace(told, operators=(OPERATOR,))


def test_a_record_has_what_merges_wrote_since_version_5() -> None:
    said = replace(OPERATOR, merged_bytes=700, most_files=9)
    told = replace(record(3), operators=(said,))
    values = json.loads(told.encode().partition(b" ")[2])
    assert decoded(values) == told
    values[0], values[-1] = 4, [operator[:-8] for operator in values[-1]]
    assert decoded(values) == replace(told, operators=(OPERATOR,))


def test_a_record_has_what_tables_on_disk_looked_up_since_version_6() -> None:
    said = replace(OPERATOR, rows_in_memory=5, cache_hits=3, cache_misses=1, read_bytes=8)
    said = replace(said, files_asked=2, rows_left=9)
    told = replace(record(3), operators=(said,))
    values = json.loads(told.encode().partition(b" ")[2])
    assert decoded(values) == told
    assert (said.hit_rate, said.files_per_lookup) == (0.75, 2.0)
    values[0], values[-1] = 5, [operator[:-6] for operator in values[-1]]
    assert decoded(values) == replace(told, operators=(OPERATOR,))
    assert (OPERATOR.hit_rate, OPERATOR.files_per_lookup) == (None, None)


def test_how_much_is_written_for_each_byte_that_has_changed() -> None:
    some = [
        record(epoch, operators=(replace(OPERATOR, uid=uid, merged_bytes=merged),))
        for epoch, (uid, merged) in enumerate((("a", 0), ("b", 99), ("a", 99), ("a", 198)))
    ]
    assert written_per_byte(some) == 2.0
    assert written_per_byte(some, "a") == 2.0 and written_per_byte(some[:1], "a") == 1.0
    assert written_per_byte(some[-1:]) == 3.0
    assert written_per_byte(some, "c") is None and written_per_byte([]) is None


def decoded(values: list[Any]) -> EpochRecord:
    data = json.dumps(values).encode()
    return EpochRecord.decode(b"%08x %s\n" % (zlib.crc32(data), data), "x")


def test_a_record_has_what_went_through_the_pipeline_since_version_3() -> None:
    told = replace(record(3), rows_in=4, rows_out=1, late_rows=2)
    values = json.loads(told.encode().partition(b" ")[2])
    assert decoded(values) == told
    assert decoded([2, *values[1:-4], values[-1]]) == record(3)


def test_of_two_records_of_an_epoch_that_of_the_later_driver_counts() -> None:
    world = World()
    for term, host in ((2, "second"), (1, "first"), (2, "newer"), (1, "last")):
        made = record(1, term=term, host=host, published_ms=5 if host == "second" else 7)
        EpochLog(memory(world)).add(made)
    [found] = read_records(memory(world)).records
    assert found.host == "newer"


# ---- what epochs add up to -----------------------------------------------------------------------


def sums(world: World) -> dict[str, dict[str, float]]:
    storage = memory(world)
    return add_up(storage, read_records(storage).records).sums


def expected(newest: int) -> dict[str, dict[str, float]]:
    totals = Totals()
    for epoch in range(1, newest + 1):
        totals.add(record(epoch))
    return totals.sums


def test_sums_are_of_what_is_known() -> None:
    assert expected(3)[""] == {
        "epochs": 3,
        "batches": 3,
        "evaluations": 6,
        "total_ms": 3 * 12.125,
        "publish_ms": 4.5,
        "commit_ms": 0.0,
        "attach_ms": 1.5,
        "process_ms": 3.75,
        "seal_ms": 6.0,
        "write_ms": 9.0,
    }
    assert "late_rows" not in expected(3)["\u00fc[op]"] and expected(3)["z"]["late_rows"] == 27
    assert expected(3)["z"]["rows_in"] == 21 and expected(3)["z"]["checkpoint_bytes"] == 297
    totals = Totals()
    totals.add(record(2, rows_in=5, late_rows=1))
    totals.add(record(2, rows_in=5))
    totals.add(record(1, rows_in=5))
    assert totals.epoch == 2 and totals.sums[""]["rows_in"] == 5
    assert Totals.decode(totals.encode(), "x").sums == totals.sums


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are full with few records, so that old ones are removed soon."""
    monkeypatch.setattr(epoch_log, "_SIZES", (1 << 10, 2 << 10, 4 << 10))


def totals_files(world: World) -> list[str]:
    return [path for path in world.files if path.endswith(".totals")]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("each", [1, 7, 250])
def test_sums_have_what_was_removed(each: int) -> None:
    world = World()
    for first in range(1, 301, each):
        newest = min(first + each - 1, 300)
        write(EpochLog(memory(world), 20), first, newest)
        if not newest % 10 or newest == 300:
            assert sums(world) == expected(newest)
    assert epochs(world)[0] > 150 and len(totals_files(world)) == 1


def about_to_remove(kept: int = 20) -> tuple[World, int]:
    """Files of which the driver of the next epoch removes some, not the first ones; its number."""
    world, epoch = World(), 1
    while True:
        before, first = world.copy(), epochs(world)[:1]
        write(EpochLog(memory(world), kept), epoch, epoch)
        if totals_files(before) and epochs(world)[:1] != first:
            return before, epoch
        epoch += 1


@pytest.mark.usefixtures("small")
def test_sums_after_a_kill_at_every_step() -> None:
    start, epoch = about_to_remove()
    for left in range(100):
        world = start.copy()
        try:
            write(EpochLog(MemoryStorage(world, Interrupted(left)), 20), epoch, epoch)
        except CrashError:
            newest = epochs(world)[-1]
            assert sums(world) == expected(newest), left
            for number in range(newest + 1, epoch + 40):
                write(EpochLog(memory(world), 20), number, number)
            assert sums(world) == expected(epoch + 39), left
            assert len(totals_files(world)) == 1
        else:
            break
    assert 6 < left < 99


@pytest.mark.usefixtures("small")
def test_another_driver_between_any_two_steps_counts_no_epoch_twice() -> None:
    start, epoch = about_to_remove()
    for left in range(100):
        world = start.copy()

        def successor(world: World = world) -> None:
            newest = epochs(world)[-1]
            for number in range(newest + 1, newest + 30):
                write(EpochLog(memory(world), 20), number, number, term=2)

        step = Interrupted(left, successor)
        write(EpochLog(MemoryStorage(world, step), 20), epoch, epoch)
        if not step.happened:
            break
        newest = epochs(world)[-1]
        assert sums(world) == expected(newest) and newest >= epoch + 28, left
    assert 6 < left < 99


@pytest.mark.usefixtures("small")
def test_damaged_sums_are_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    world, epoch = about_to_remove()
    [path] = totals_files(world)
    kept = len(epochs(world))
    world.files[path] = world.files[path][:-9] + b"x" * 9
    assert sums(world)[""]["epochs"] == kept
    assert "what older epochs add up to is lost" in caplog.text
    [(name, problem)] = read_records(memory(world)).problems
    assert name == path and isinstance(problem, CorruptFileError)
    assert path in without_epochs_after(memory(world), epoch)
    for number in range(epoch, epoch + 50):
        write(EpochLog(memory(world), 20), number, number)
    assert sums(world)[""]["epochs"] == kept + 50
    [path] = totals_files(world)
    assert path in without_epochs_after(memory(world), 1)
    assert path not in without_epochs_after(memory(world), epoch + 49)


# ---- one line an epoch ---------------------------------------------------------------------------


def test_an_epoch_is_a_line_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    given = record(7, run_key="load s3://AKIA:K7MDENG@bucket/x", rows_in=20, rows_out=3)
    with caplog.at_level(logging.INFO, "pystate.epoch"):
        log_epoch(given, "shop", "/data?token=K7MDENG")
    [line] = caplog.records
    assert line.getMessage() == (
        "job 'shop': epoch 7: 20 rows in, 3 out, 10 keys, 6 rows of state changed, 0.012 s"
    )
    fields = vars(line)
    assert (fields["event"], fields["job"], fields["epoch"]) == ("epoch", "shop", 7)
    assert fields["run_key"] == "load s3://***@bucket/x"
    assert fields["keys"] == 10 and fields["write_ms"] == 3.0 and fields["late_rows"] is None
    assert [each["uid"] for each in fields["operators"]] == ["\u00fc[op]", "z"]
    assert "fingerprint" not in fields["operators"][0]
    assert "K7MDENG" not in json.dumps(fields, default=str)


def test_a_handler_that_fails_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(logging.Handler):
        calls = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.calls += 1
            raise RuntimeError("the disk of logs is full")

    broken, log = Broken(), logging.getLogger("pystate.epoch")
    log.addHandler(broken)
    try:
        with caplog.at_level(logging.WARNING, "pystate.epoch"):
            log_epoch(record(1), "shop", "x")  # nobody asks for it
        assert broken.calls == 0
        with caplog.at_level(logging.INFO, "pystate.epoch"):
            log_epoch(record(1), "shop", "x")
        assert broken.calls == 1
    finally:
        log.removeHandler(broken)
