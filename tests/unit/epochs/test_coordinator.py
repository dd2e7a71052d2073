"""The driver's half of the protocol, with work that needs no tables."""

from __future__ import annotations

import dataclasses
import datetime
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pystate.checkpoint.manifest import Manifest, manifest_path
from pystate.checkpoint.manifest_log import read_head, retained_epochs
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.refs import EMPTY_ID
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch, RepeatableError
from pystate.epochs.position import AlreadyDone
from pystate.epochs.range_report import InputSeen, RangeReport
from pystate.epochs.watermarks import Input, OperatorTime
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    DeclarationError,
    EvaluationError,
    FencedError,
    InvalidArgumentError,
    LineageError,
    SchemaError,
    UnclaimedStateError,
    WrongTypeError,
)
from tests.conftest import KEY, STATE, FakeWork


def batch(number: int, query: str = "q", offsets: str | None = None) -> dict[str, Any]:
    return {
        "query_id": query,
        "batch_id": number,
        "offsets_hash": f"offsets-{number}" if offsets is None else offsets,
        "processing_time_ms": 1000 + number,
    }


def opened(coordinator: Coordinator, **position: Any) -> Epoch:
    epoch = coordinator.open_epoch(**position)
    assert isinstance(epoch, Epoch)
    return epoch


def reported(work: FakeWork, coordinator: Coordinator, text: str = "x", **position: Any) -> Epoch:
    """An epoch whose tasks have all reported."""
    epoch = opened(coordinator, **position)
    for report in work.reports(epoch, text):
        epoch.report(report)
    return epoch


Drivers = tuple[Coordinator, Coordinator]


@pytest.fixture
def drivers(work: FakeWork) -> Iterator[Drivers]:
    first, second = work.coordinator(), work.coordinator()
    yield first, second
    first.close()
    second.close()


# ---- one driver, one query ----------------------------------------------------------------------


def test_batches_follow_each_other(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        for number in range(5):
            result = coordinator.run(work.evaluate(f"b{number}"), **batch(number))
            assert result.epoch == number + 1 and not result.already_done
            assert result.evaluations == 1
        head = coordinator.head
    assert head is not None and work.text(head) == [f"b{n}" for n in range(5)]
    assert work.text(head, index=1) == [f"b{n}" for n in range(5)]
    assert (head.predecessor, head.query_id, head.batch_id) == (4, "q", 4)
    assert (head.run_id, head.term) == (coordinator.run_id, 1)
    assert head.processing_time_ms == 1004
    assert work.committed == [1, 2, 3, 4, 5]
    assert retained_epochs(work.storage) == (3, 4, 5)


def test_restart_goes_on(work: FakeWork, caplog: pytest.LogCaptureFixture) -> None:
    with work.coordinator() as first, caplog.at_level("INFO", "pystate.epochs"):
        first.run(work.evaluate("b0"), **batch(0))
        assert [line for line in caplog.messages if "as its driver 1" in line] != []
    with work.coordinator() as second, caplog.at_level("INFO", "pystate.epochs"):
        second.run(work.evaluate("b1"), **batch(1))
        second.run(work.evaluate("b2"), **batch(2))
        told = [line for line in caplog.messages if "after epoch 1, of driver 1" in line]
        assert len(told) == 1 and work.storage.uri in told[0] and "driver 2" in told[0]
        assert second.head is not None and second.head.term == 2
        assert work.text(second.head) == ["b0", "b1", "b2"]


def test_published_batch_is_not_computed_again(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate("b0"), **batch(0))
        done = coordinator.open_epoch(**batch(0))
        assert isinstance(done, AlreadyDone) and done.epoch == 1 and done.manifest is not None
    work.committed.clear()
    with work.coordinator() as coordinator:
        result = coordinator.run(lambda epoch: pytest.fail("evaluated"), **batch(0))
        assert result.already_done and result.epoch == 1
    assert work.committed == []


@pytest.mark.parametrize("mark", ["none", "torn", "of another evaluation"])
def test_driver_that_may_have_died_before_its_commit(work: FakeWork, mark: str) -> None:
    """A new one cannot know whether the old one got that far: it commits again."""
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate("b0"), **batch(0))
    if mark == "none":
        work.storage.delete("manifests/committed")
    else:
        fields = {"epoch": 1, "evaluation_id": "0" * 32}
        data = encode_document("committed", 1, fields) if mark != "torn" else b""
        work.storage.replace("manifests/committed", data)
    work.committed.clear()
    for _ in range(2):
        with work.coordinator() as coordinator:
            assert coordinator.run(work.evaluate(), **batch(0)).already_done
        assert work.committed == [1]


def test_output_may_go_once_it_is_committed(work: FakeWork) -> None:
    def lost(manifest: Any) -> None:
        raise CheckpointError("output is lost")

    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate("b0"), **batch(0))
    for number in (1, 2):
        with (
            work.coordinator(commit_sinks=lost) as coordinator,
            pytest.raises(CheckpointError, match="output is lost"),
        ):
            coordinator.run(work.evaluate(), **batch(number))
    # The first epoch's is no obstacle, that of the second is not known to be there.
    assert retained_epochs(work.storage) == (1, 2)


def test_batches_that_do_not_follow(work: FakeWork) -> None:
    """With other offsets, not retained any more, after a gap, and not a query's first."""
    with work.coordinator(retained=2) as coordinator:
        for restore in ({}, {"restore": "latest"}):
            with pytest.raises(CheckpointError, match="batch 7 is not its first"):
                coordinator.open_epoch(**batch(7), **restore)
        for number in range(4):
            coordinator.run(work.evaluate(), **batch(number))
        done = coordinator.open_epoch(**batch(2))
        assert isinstance(done, AlreadyDone) and done.epoch == 3
        for wrong, message in (
            (batch(3, offsets="different"), "batch 3 of query q .* other source offsets"),
            (batch(2, offsets="different"), "other source offsets"),
            (batch(0), "not retained any more"),
            (batch(5), "manifest of batch 4 is missing"),
        ):
            with pytest.raises(CheckpointError, match=message):
                coordinator.open_epoch(**wrong)
        coordinator.run(work.evaluate(), **batch(4))


# ---- several queries, runs ----------------------------------------------------------------------


def test_fresh_query_needs_an_explicit_restore(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate("old"), **batch(0, "old"))
        with pytest.raises(CheckpointError, match='restore="latest"'):
            coordinator.open_epoch(**batch(0, "new"))
        coordinator.run(work.evaluate("new"), **batch(0, "new"), restore="latest")
        # Stays in the program for ever and then means nothing.
        coordinator.run(work.evaluate("new"), **batch(1, "new"), restore="latest")
        assert coordinator.head is not None
        assert work.text(coordinator.head) == ["old", "new", "new"]
        with pytest.raises(CheckpointError, match="taken the state over"):
            coordinator.open_epoch(**batch(1, "old"))


def test_runs_between_batches(work: FakeWork) -> None:
    with work.coordinator(retained=1) as coordinator:
        coordinator.run(work.evaluate("b0"), **batch(0))
        for key in ("k1", "k2", "k3"):
            coordinator.run(work.evaluate(key), run_key=key)
        # Published, but Spark never committed it: known although its manifest is gone.
        assert coordinator.run(work.evaluate("no"), **batch(0)).already_done
        with pytest.raises(CheckpointError, match="other source offsets"):
            coordinator.open_epoch(**batch(0, offsets="different"))
        coordinator.run(work.evaluate("b1"), **batch(1))
        assert coordinator.head is not None
        assert work.text(coordinator.head) == ["b0", "k1", "k2", "k3", "b1"]


def test_query_after_runs_is_a_restore(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate("backfill"), run_key="k")
        with pytest.raises(CheckpointError, match='restore="latest"'):
            coordinator.open_epoch(**batch(0))
        coordinator.run(work.evaluate("b0"), **batch(0), restore="latest")
        assert coordinator.head is not None
        assert work.text(coordinator.head) == ["backfill", "b0"]


def test_same_run_key_changes_nothing(work: FakeWork) -> None:
    with work.coordinator(retained=2) as coordinator:
        for key in ("a", "b", "c", "d"):
            coordinator.run(work.evaluate(key), run_key=key)
    with work.coordinator(retained=2) as coordinator:
        for epoch, key in enumerate(("a", "b", "c", "d"), 1):
            result = coordinator.run(work.evaluate("again"), run_key=key)
            assert result.already_done and result.epoch == epoch
            assert (result.manifest is not None) == (key in "cd")
        assert coordinator.head is not None and coordinator.head.epoch == 4


def test_runs_without_a_key(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        assert coordinator.run(work.evaluate()).epoch == 1
        assert coordinator.run(work.evaluate()).epoch == 2


@pytest.mark.parametrize(
    "position",
    [
        {"query_id": "q"},
        {"query_id": "q", "batch_id": 1},
        {"batch_id": 1},
        {"query_id": "q", "batch_id": 1, "offsets_hash": "h", "run_key": "k"},
        {"query_id": "q", "batch_id": -1, "offsets_hash": "h"},
        {"restore": "newest"},
    ],
)
def test_positions_that_make_no_sense(work: FakeWork, position: dict[str, Any]) -> None:
    with work.coordinator() as coordinator, pytest.raises(InvalidArgumentError):
        coordinator.open_epoch(**position)


# ---- reports ------------------------------------------------------------------------------------


def test_missing_reports_name_operator_ranges_and_causes(work: FakeWork) -> None:
    calls = []

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        calls.append(epoch.evaluation_id)
        for report in work.reports(epoch, uid="first"):
            epoch.report(report)
        epoch.report(work.reports(epoch, uid="second")[0])
        return ()

    with work.coordinator(parallelism=3) as coordinator:
        with pytest.raises(EvaluationError) as caught:
            coordinator.run(evaluate, **batch(0))
        for part in ("'second', ranges 1, 2", "limit()", "empty side", "nothing uses"):
            assert part in str(caught.value)
        assert "'first'" not in str(caught.value)
        assert len(calls) == 1 and coordinator.head is None
        coordinator.run(work.evaluate(), **batch(0))


def test_repeated_report_runs_the_epoch_again(work: FakeWork) -> None:
    seen: list[str] = []

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        seen.append(epoch.evaluation_id)
        reports = work.reports(epoch, f"try{len(seen)}")
        if len(seen) == 1:
            (again,) = epoch.base.operators if epoch.base else (None,)
            assert again is None
            second = work.write("op", _base(epoch), 1, "loser", epoch.evaluation_id)
            reports.append(second)
        for report in reports:
            epoch.report(report)
        return ()

    with work.coordinator() as coordinator:
        result = coordinator.run(evaluate, **batch(0))
        assert result.evaluations == 2 and result.manifest is not None
        assert len(set(seen)) == 2 and result.manifest.evaluation_id == seen[1]
        assert work.text(result.manifest) == ["try2"]


def _base(epoch: Epoch) -> Any:
    return next(iter(epoch._declared.values())).ranges[0]


def test_repeated_in_the_same_way_is_an_error_with_a_hint(work: FakeWork) -> None:
    calls = []

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        calls.append(1)
        for report in work.reports(epoch):
            epoch.report(report)
            state = _base(epoch)
            if report.index == 0:
                epoch.report(work.write("op", state, 1, "twice", epoch.evaluation_id))
        return ()

    with work.coordinator() as coordinator:
        with pytest.raises(EvaluationError, match=r"'op', range 0 .*localCheckpoint\(\)"):
            coordinator.run(evaluate, **batch(0))
        assert len(calls) == 2 and coordinator.head is None


def test_evaluations_are_bounded(work: FakeWork) -> None:
    calls = []

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        calls.append(1)
        uid = f"op{len(calls)}"  # never the same way twice
        reports = work.reports(epoch, uid=uid)
        for report in (*reports, dataclasses.replace(reports[0], metrics={"other": 1})):
            epoch.report(report)
        return ()

    with work.coordinator(max_evaluations=3) as coordinator:
        with pytest.raises(EvaluationError, match="3 evaluations"):
            coordinator.run(evaluate, **batch(0))
        assert len(calls) == 3


def test_evaluations_that_put_something_right_do_not_count(work: FakeWork) -> None:
    moved = iter(["a", "b", "c", "d", "e"])

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        for table in moved:
            raise RepeatableError(f"table {table} moved", "a hint", is_progress=True)
        for report in work.reports(epoch):
            epoch.report(report)
        return ()

    with work.coordinator(max_evaluations=3) as coordinator:
        assert coordinator.run(evaluate, **batch(0)).evaluations == 6


@pytest.mark.parametrize("moved", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_what_was_put_right_and_happens_again_counts(work: FakeWork, moved: list[str]) -> None:
    calls: list[int] = []

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        calls.append(1)
        table = moved[len(calls) % len(moved)]
        raise RepeatableError(f"table {table} moved", "a hint", is_progress=True)

    with (
        work.coordinator(max_evaluations=3) as coordinator,
        pytest.raises(EvaluationError, match=r"moved.*a hint"),
    ):
        coordinator.run(evaluate, **batch(0))
    assert len(calls) == (2 if len(moved) == 1 else len(moved) + 3)


def test_the_same_report_twice_counts_once(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        epoch = opened(coordinator, **batch(0))
        for report in work.reports(epoch):
            epoch.report(report)
            epoch.report(dataclasses.replace(report))
        assert epoch.complete().epoch == 1


def test_reports_of_another_evaluation_are_dropped(work: FakeWork) -> None:
    with work.coordinator(orphan_grace_ms=0) as coordinator:
        epoch = opened(coordinator, **batch(0))
        stale = work.reports(epoch, "stale")
        epoch.restart()
        reports = work.reports(epoch, "good")
        for report in stale:
            assert not epoch.report(report)
        for report in reports:
            assert epoch.report(report)
        assert epoch.dropped_reports == tuple(stale)
        manifest = epoch.complete()
        assert work.text(manifest) == ["good"]
        late = work.write("op", _base(epoch), 1, "late", epoch.evaluation_id)
        assert not epoch.report(late)
        coordinator.maintain()
        stored = {entry.path for entry in work.storage.list("state")}
        assert stored == manifest.paths


def test_lineage_is_verified(work: FakeWork) -> None:
    def with_report(**changes: Any) -> None:
        epoch = opened(coordinator, **batch(1))
        with epoch:
            reports = work.reports(epoch)
            assert reports[0].file is not None
            in_file = {k[5:]: changes.pop(k) for k in list(changes) if k.startswith("file_")}
            file = dataclasses.replace(reports[0].file, **in_file) if in_file else reports[0].file
            epoch.report(dataclasses.replace(reports[0], **{"file": file, **changes}))
            epoch.report(reports[1])
            epoch.complete()

    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate(), **batch(0))
        empty = {"parent": EMPTY_ID, "file_parent": EMPTY_ID}
        for changes, error, message in (
            (empty, LineageError, r"range 0: built on 0{32}, but the base stands at"),
            ({"file_id": "f" * 32}, LineageError, "expected"),
            ({"file_epoch": 1}, LineageError, "expected"),
            ({"file_last_key_group": 127}, LineageError, "other key groups"),
            ({"file": None}, LineageError, "names no file"),
            ({"index": 2}, EvaluationError, "never declared"),
            ({"uid": "other"}, EvaluationError, "never declared"),
        ):
            with pytest.raises(error, match=message):
                with_report(**changes)
        assert coordinator.head is not None and coordinator.head.epoch == 1
        with_report()


def test_untouched_range(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate("b0"), **batch(0))
        epoch = opened(coordinator, **batch(1))
        written, untouched = work.reports(epoch, "b1")
        epoch.report(written)
        state = epoch.declare("op2", key_schema=KEY, state_schema=STATE)
        for r in state:
            epoch.report(RangeReport("op2", r.index, epoch.evaluation_id, r.id, r.id, None))
        epoch.report(dataclasses.replace(untouched, id=untouched.parent, file=None))
        manifest = epoch.complete()
        assert work.text(manifest, index=0) == ["b0", "b1"]
        assert work.text(manifest, index=1) == ["b0"]
        assert work.text(manifest, "op2") == []


def test_file_that_the_driver_cannot_see(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        epoch = opened(coordinator, **batch(0))
        reports = work.reports(epoch)
        for report in reports:
            epoch.report(report)
        assert reports[0].file is not None
        work.storage.delete(reports[0].file.path)
        with pytest.raises(CheckpointError, match=r"range 0: .* file system that all hosts share"):
            epoch.complete()
        epoch.abort()


# ---- failing evaluations ------------------------------------------------------------------------


def test_failed_job_runs_again(work: FakeWork) -> None:
    def evaluate(epoch: Epoch) -> Sequence[Any]:
        if not epoch.discarded_evaluations:
            raise RuntimeError("executor 1 lost")
        return work.evaluate()(epoch)

    with work.coordinator() as coordinator:
        assert coordinator.run(evaluate, **batch(0)).evaluations == 2


def test_the_same_failure_twice_is_raised_as_it_is(work: FakeWork) -> None:
    calls = []

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        calls.append(1)
        raise ZeroDivisionError(f"stage {17 + len(calls)}.0 task 4f3a-{len(calls)}")

    with work.coordinator() as coordinator:
        with pytest.raises(ZeroDivisionError, match="task 4f3a-2"):
            coordinator.run(evaluate, **batch(0))
        assert len(calls) == 2
        coordinator.run(work.evaluate(), **batch(0))


def test_the_log_of_a_repetition_is_short(work: FakeWork, caplog: pytest.LogCaptureFixture) -> None:
    texts = [
        "An error occurred while calling o7.parquet.\n: java.io.IOException: disk\n\tat x.Y(Z)",
        "\n  Job aborted.\nDriver stacktrace:\n\tat x.Y(Z.java)",
    ]

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        if texts:
            raise RuntimeError(texts.pop(0))
        return work.evaluate("good")(epoch)

    with work.coordinator() as coordinator:
        coordinator.run(evaluate, **batch(0))
    repeated = [r.message.split("runs again: ") for r in caplog.records if r.levelname == "WARNING"]
    assert [why for _, why in repeated] == [
        "RuntimeError: An error occurred while calling o7.parquet. : java.io.IOException: disk",
        "RuntimeError: Job aborted.",
    ]


def test_own_errors_are_not_evaluated_again(work: FakeWork) -> None:
    calls = []

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        calls.append(1)
        raise SchemaError("no")

    with work.coordinator() as coordinator:
        with pytest.raises(SchemaError):
            coordinator.run(evaluate, **batch(0))
        assert len(calls) == 1
        with pytest.raises(ZeroDivisionError):
            coordinator.run(lambda e: 1 // 0, **batch(0), retryable=lambda e: False)  # type: ignore[arg-type,return-value]


# ---- declarations -------------------------------------------------------------------------------


def test_uid_twice(work: FakeWork) -> None:
    with work.coordinator() as coordinator, opened(coordinator, **batch(0)) as epoch:
        epoch.declare("op", key_schema=KEY, state_schema=STATE)
        with pytest.raises(DeclarationError, match="used twice"):
            epoch.declare("op", key_schema=KEY, state_schema=STATE)
        epoch.restart()
        epoch.declare("op", key_schema=KEY, state_schema=STATE)


def test_schemas_are_compared(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate(), **batch(0))
        with opened(coordinator, **batch(1)) as epoch:
            for key, state, error, message in (
                ({"k": "string"}, STATE, SchemaError, r"keyed by \(k bigint\)"),
                (KEY, {"n": "double"}, SchemaError, "'n': stored as bigint, declared as double"),
                (KEY, {"m": "bigint"}, UnclaimedStateError, "no declaration claims: n"),
            ):
                with pytest.raises(error, match=message):
                    epoch.declare("op", key_schema=key, state_schema=state)
            epoch.declare("op", key_schema=KEY, state_schema={"m": "string", "n": "bigint"})


@pytest.mark.parametrize("key", [20240101, b"a", datetime.date(2024, 1, 1)])
def test_run_key_that_is_no_string(work: FakeWork, key: Any) -> None:
    with (
        work.coordinator() as coordinator,
        pytest.raises(WrongTypeError, match=f"is of type {type(key).__name__}: a run key is"),
    ):
        coordinator.run(work.evaluate(), run_key=key)
    assert read_head(work.storage) is None


def test_undeclared_operator(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate("b0", uids=("one", "two")), **batch(0))
        with pytest.raises(UnclaimedStateError, match="'two'"):
            coordinator.run(work.evaluate("b1", uids=("one",)), **batch(1))
    with work.coordinator(allow_unclaimed_state=True) as coordinator:
        coordinator.run(work.evaluate("b1", uids=("one",)), **batch(1))
        result = coordinator.run(work.evaluate("b2", uids=("one", "two")), **batch(2))
        assert result.manifest is not None
        assert work.text(result.manifest, "one") == ["b0", "b1", "b2"]
        assert work.text(result.manifest, "two") == ["b0", "b2"]


def test_job_file_knows_the_operators(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate(uids=("b", "a")), **batch(0))
    with work.coordinator() as coordinator:
        assert [entry.uid for entry in coordinator.job.operators] == ["a", "b"]


def test_another_parallelism(work: FakeWork) -> None:
    with work.coordinator(parallelism=3) as coordinator:
        coordinator.run(work.evaluate("b0"), **batch(0))
    with work.coordinator(parallelism=2) as coordinator:
        with opened(coordinator, **batch(1)) as epoch:
            planned = epoch.declare("op", key_schema=KEY, state_schema=STATE)
        result = coordinator.run(work.evaluate("b1"), **batch(1))
        assert result.manifest is not None
        assert work.text(result.manifest) == ["b0", "b0", "b1"]
        (operator,) = result.manifest.operators
        assert operator.ranges[0].deltas_after(planned[0].id) == operator.ranges[0].deltas[2:]
    with pytest.raises(InvalidArgumentError, match="max_parallelism=128, not 64"):
        work.coordinator(max_parallelism=64)
    with pytest.raises(InvalidArgumentError, match="more than the 128 key groups"):
        work.coordinator(parallelism=129)


# ---- times --------------------------------------------------------------------------------------


def timed(
    work: FakeWork, inputs: dict[str, tuple[int | None, Sequence[int | None]]]
) -> Callable[[Epoch], Sequence[Any]]:
    """An evaluation of operators: uid -> (allowed delay, what its two ranges have seen)."""

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        for uid, (delay, seen) in inputs.items():
            given = Input(event_time=delay is not None, allowed_delay_ms=delay or 0)
            ranges = epoch.declare(uid, key_schema=KEY, state_schema=STATE, inputs=(given,))
            for state, time in zip(ranges, seen, strict=True):
                report = work.write(uid, state, epoch.number, "x", epoch.evaluation_id)
                saw = InputSeen(max_event_time_ms=time)
                epoch.report(dataclasses.replace(report, inputs=(saw,)))
        return ()

    return evaluate


def test_processing_time_and_watermark_never_go_back(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        for time_ms, delay, seen, want_time, want_mark, want_seen in (
            (100, 3, (None, None), 100, None, None),
            (50, 3, (10, 4), 100, 7, 10),
            (200, 3, (8, None), 200, 7, 10),
            (300, 3, (None, None), 300, 7, 10),
            (300, 9, (11, 11), 300, 7, 11),  # a longer delay from now on
            (300, None, (50, 50), 300, None, 50),  # no event time any more
            (300, 0, (51, 12), 300, 51, 51),
        ):
            result = coordinator.run(timed(work, {"op": (delay, seen)}), processing_time_ms=time_ms)
            assert result.manifest is not None
            assert result.manifest.processing_time_ms == want_time
            assert result.manifest.watermark_ms == want_mark
            assert result.manifest.operators[0].max_event_time_ms == want_seen


def test_operators_have_watermarks_of_their_own(work: FakeWork) -> None:
    found = []
    with work.coordinator(allow_unclaimed_state=True) as coordinator:
        for inputs in (
            {"a": (10, (100, 120)), "b": (0, (None, None)), "c": (None, (7, 7))},
            {"a": (10, (100, 120)), "b": (0, (90, None)), "c": (None, (7, 7))},
            {"a": (10, (100, 121)), "b": (0, (500, 600)), "c": (None, (7, 7))},
            # An operator that the pipeline leaves out, and one that is new to it.
            {"b": (0, (700, None)), "d": (0, (None, None))},
            {"b": (0, (None, None)), "d": (0, (-(1 << 63), None))},
        ):
            result = coordinator.run(timed(work, inputs))
            assert result.manifest is not None
            marks = {op.uid: op.watermark_ms for op in result.manifest.operators}
            found.append((result.manifest.watermark_ms, marks))
    assert found == [
        (110, {"a": 110, "b": None, "c": None}),
        (90, {"a": 110, "b": 90, "c": None}),
        (111, {"a": 111, "b": 600, "c": None}),
        (111, {"b": 700, "d": None, "a": 111, "c": None}),
        (-(1 << 63), {"b": 700, "d": -(1 << 63), "a": 111, "c": None}),
    ]


def test_watermark_of_times_at_the_end_of_64_bits(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        result = coordinator.run(timed(work, {"op": (5, (-(1 << 63) + 2, None))}))
        assert result.manifest is not None and result.manifest.watermark_ms == -(1 << 63)


def test_a_replayed_epoch_has_the_same_times(work: FakeWork) -> None:
    seen: list[tuple[int, OperatorTime | None]] = []
    evaluate = timed(work, {"op": (5, (100, 200))})

    def crash(epoch: Epoch) -> Sequence[Any]:
        evaluate(epoch)
        seen.append((epoch.processing_time_ms, epoch.time("op")))
        raise DeclarationError("the driver dies here")

    def retried(epoch: Epoch) -> Sequence[Any]:
        discarded = len(epoch.discarded_evaluations) < 2
        # Reports of an evaluation that is discarded move nothing.
        timed(work, {"op": (5, (900 + len(seen), 900) if discarded else (100, 200))})(epoch)
        seen.append((epoch.processing_time_ms, epoch.time("op")))
        if discarded:
            raise OSError(f"attempt {'abc'[len(epoch.discarded_evaluations)]}")
        return ()

    with work.coordinator() as coordinator:
        coordinator.run(evaluate, **batch(0))
        with pytest.raises(DeclarationError, match="dies here"):
            coordinator.run(crash, **batch(1))
    for _ in range(2):
        with work.coordinator() as coordinator:
            coordinator.run(retried, **batch(1))
            assert coordinator.head is not None and coordinator.head.watermark_ms == 195
    assert seen == [(1001, OperatorTime(195, 195))] * 4


def test_next_timers_follow_the_reports(work: FakeWork) -> None:
    def evaluate(epoch: Epoch) -> Sequence[Any]:
        ranges = epoch.declare("op", key_schema=KEY, state_schema=STATE)
        planned.append([(r.next_event_timer_ms, r.next_processing_timer_ms) for r in ranges])
        times = dict(enumerate([(5, None), (3, 9)])) if epoch.number == 1 else {}
        for state in ranges:
            report = work.write("op", state, epoch.number, "x", epoch.evaluation_id)
            event, processing = times.get(state.index, planned[-1][state.index])
            if epoch.number == 2 and state.index:
                # Nothing was changed: the report repeats what the base says.
                report = RangeReport("op", 1, epoch.evaluation_id, state.id, state.id, None)
            if epoch.number == 3 and state.index == 2:
                # A task that looked and found nothing to do: the timer was another range's.
                report = RangeReport("op", 2, epoch.evaluation_id, state.id, state.id, None)
                event = processing = None
            epoch.report(
                dataclasses.replace(
                    report, next_event_timer_ms=event, next_processing_timer_ms=processing
                )
            )
        return ()

    planned: list[list[tuple[int | None, int | None]]] = []
    with work.coordinator() as coordinator:
        for _ in range(2):
            coordinator.run(evaluate)
    for parallelism in (3, 3, 1):
        with work.coordinator(parallelism=parallelism) as coordinator:
            coordinator.run(evaluate)
    assert planned == [
        [(None, None), (None, None)],
        [(5, None), (3, 9)],
        # Ranges that meet several old ones have the earliest timer of any.
        [(5, None), (3, 9), (3, 9)],
        [(5, None), (3, 9), (None, None)],
        [(3, 9)],
    ]


# ---- sinks --------------------------------------------------------------------------------------


def test_failed_commit_is_repeated_before_anything_else(work: FakeWork) -> None:
    fail = [True]

    def commit(manifest: Any) -> None:
        if fail[0]:
            raise OSError("sink is down")
        work.committed.append(manifest.epoch)

    with work.coordinator(commit_sinks=commit) as coordinator:
        with pytest.raises(OSError, match="sink is down"):
            coordinator.run(work.evaluate("b0"), **batch(0))
        with pytest.raises(OSError, match="sink is down"):
            coordinator.run(work.evaluate("b1"), **batch(1))
        assert retained_epochs(work.storage) == (1,)
        fail[0] = False
        assert coordinator.run(work.evaluate("b0"), **batch(0)).already_done
        coordinator.run(work.evaluate("b1"), **batch(1))
        assert work.committed == [1, 2]


def test_transactions_without_a_sink(work: FakeWork) -> None:
    for number in range(2):
        with (
            work.coordinator(commit_sinks=None) as coordinator,
            pytest.raises(CheckpointError, match="no sink to commit them"),
        ):
            coordinator.run(work.evaluate(), **batch(number))
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate(), **batch(1))


def test_transactions_that_are_not_json(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        with pytest.raises(InvalidArgumentError, match="plain JSON"):
            coordinator.run(work.evaluate(sinks=(object(),)), **batch(0))
        assert read_head(work.storage) is None


# ---- lost and damaged manifests -----------------------------------------------------------------


@pytest.mark.parametrize("lost", [2, 3, 4])
@pytest.mark.parametrize("same_driver", [True, False])
def test_lost_manifest(work: FakeWork, lost: int, same_driver: bool) -> None:
    with work.coordinator(retained=4) as coordinator:
        for number in range(4):
            coordinator.run(work.evaluate(), **batch(number))
        data = work.storage.read_bytes(manifest_path(lost))
        work.storage.delete(manifest_path(lost))
        user = coordinator if same_driver else work.coordinator(retained=4)
        for position in (batch(4), batch(3)):
            with pytest.raises(CheckpointError, match=rf"{manifest_path(lost)} is lost"):
                user.open_epoch(**position)
        work.storage.publish(manifest_path(lost), data)
        user.run(work.evaluate(), **batch(4))


@pytest.mark.parametrize(
    ("hurt", "error", "message"),
    [
        ({manifest_path(1): None}, CheckpointError, r"00000001\.manifest is lost"),
        (
            {manifest_path(1): None, "manifests/latest": None},
            CheckpointError,
            r"00000001\.manifest is lost \(history/ tells of it",
        ),
        ({manifest_path(1): b"torn"}, CorruptFileError, r"00000001\.manifest"),
        ({"manifests/latest": b""}, None, ""),
    ],
)
def test_the_only_manifest(
    work: FakeWork, hurt: dict[str, bytes | None], error: type[Exception] | None, message: str
) -> None:
    """Lost, damaged, or only the hint of where it is."""
    with work.coordinator() as coordinator:
        coordinator.run(work.evaluate(), **batch(0))
    for path, data in hurt.items():
        work.storage.delete(path) if data is None else work.storage.replace(path, data)
    for number in (0, 1):
        with work.coordinator() as coordinator:
            if error is None:
                coordinator.run(work.evaluate(), **batch(number))
                continue
            with pytest.raises(error, match=message):
                coordinator.open_epoch(**batch(number))


def test_damaged_older_manifest_is_retired_in_its_turn(work: FakeWork) -> None:
    with work.coordinator(retained=3, orphan_grace_ms=0) as coordinator:
        for number in range(4):
            coordinator.run(work.evaluate(), **batch(number))
    work.storage.replace(manifest_path(3), b"torn")
    for number in range(4, 8):
        with work.coordinator(retained=3, orphan_grace_ms=0) as coordinator:
            coordinator.run(work.evaluate(), **batch(number))
            coordinator.maintain()
            # Nothing that only the damaged one may name goes before it.
            assert work.text(coordinator.head) == ["x"] * (number + 1)  # type: ignore[arg-type]
    assert retained_epochs(work.storage) == (6, 7, 8)


def test_files_of_a_damaged_manifest_stay_while_it_does(work: FakeWork) -> None:
    """It can be brought back from a copy."""
    options: Any = {"retained": 3, "orphan_grace_ms": 0, "parallelism": 1}
    with work.coordinator(**options) as coordinator:
        for evaluate in (work.evaluate(), work.evaluate(), replaced(work, "y")):
            coordinator.run(evaluate)
    manifest = Manifest.decode(work.storage.read_bytes(manifest_path(2)), "m")
    work.storage.replace(manifest_path(2), b"torn")
    with work.coordinator(**options) as coordinator:
        for epoch in (4, 5):
            coordinator.run(replaced(work, "z"))
            coordinator.maintain()
            assert retained_epochs(work.storage) == (epoch - 2, epoch - 1, epoch)
            stored = {entry.path for entry in work.storage.list("state")}
            assert (manifest.paths <= stored) == (epoch == 4)
        assert len(stored) == 3


def replaced(work: FakeWork, text: str) -> Callable[[Epoch], Sequence[Any]]:
    """Work that leaves nothing of what was before."""

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        [state] = epoch.declare("op", key_schema=KEY, state_schema=STATE)
        epoch._declared["op"] = dataclasses.replace(
            epoch._declared["op"], ranges=(dataclasses.replace(state, deltas=()),)
        )
        epoch.report(work.write("op", state, epoch.number, text, epoch.evaluation_id))
        return ()

    return evaluate


@pytest.mark.parametrize("retired", [False, True])
def test_run_that_a_damaged_manifest_may_hold(work: FakeWork, retired: bool) -> None:
    with work.coordinator(retained=3) as coordinator:
        for key in "abc":
            coordinator.run(work.evaluate(key), run_key=key)
    work.storage.replace(manifest_path(2), b"torn")
    with work.coordinator(retained=3) as coordinator:
        for _ in range(3 if retired else 0):
            coordinator.run(work.evaluate("more"))
        coordinator._maintenance.wait()
        assert work.storage.exists(manifest_path(2)) != retired
        for key in "ac":
            assert coordinator.run(work.evaluate(), run_key=key).already_done
        for key in "bd":
            with pytest.raises(CheckpointError, match=r"be epoch 2.*runs/00000002\.other") as info:
                coordinator.run(work.evaluate(), run_key=key)
            assert work.storage.uri in str(info.value)
        work.storage.publish("runs/00000002.other", b"")
        assert not coordinator.run(work.evaluate("d"), run_key="d").already_done
        assert coordinator.run(work.evaluate("d"), run_key="d").already_done


# ---- two drivers --------------------------------------------------------------------------------


@pytest.mark.parametrize("checks", [True, False])
def test_second_driver_fences_the_first(
    work: FakeWork, drivers: Drivers, monkeypatch: pytest.MonkeyPatch, checks: bool
) -> None:
    """Also where it passes its check, and only then is overtaken."""
    first, second = drivers
    first.run(work.evaluate("b0"), **batch(0))
    epoch = reported(work, first, "first", **batch(1))
    second.run(work.evaluate("second"), **batch(1))
    with monkeypatch.context() as patch:
        if not checks:
            patch.setattr(first._ownership, "check", lambda: None)
        message = second.run_id if checks else "published by another driver"
        with pytest.raises(FencedError, match=message):
            epoch.complete(("out",))
    epoch.abort()
    with pytest.raises(FencedError, match="another owner"):
        first.open_epoch(**batch(2))
    assert second.head is not None and work.text(second.head) == ["b0", "second"]
    assert work.committed.count(2) == 1


def test_overtaken_driver_stops_before_it_publishes(work: FakeWork, drivers: Drivers) -> None:
    epoch = reported(work, drivers[0], **batch(0))
    with opened(drivers[1], **batch(0)):
        with pytest.raises(FencedError, match="another owner"):
            epoch.complete(("out",))
        assert read_head(work.storage) is None


def test_nothing_is_built_on_a_successors_epoch(
    work: FakeWork, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a listing of the owners shows: the successor has removed what could be needed."""
    first, second = drivers
    first.run(work.evaluate("b0"), **batch(0))
    second.run(work.evaluate("b1"), **batch(1))
    monkeypatch.setattr(first._ownership, "check", lambda: None)
    with pytest.raises(FencedError, match=f"another owner now: run {second.run_id}"):
        first.open_epoch(**batch(2))


def test_late_note_of_a_commit_hides_no_newer_one(work: FakeWork) -> None:
    other = work.coordinator()
    late = [True]

    def commit(manifest: Manifest) -> None:
        if late and late.pop():
            other.run(work.evaluate(), **batch(1))

    with work.coordinator(commit_sinks=commit) as driver:
        driver.run(work.evaluate(), **batch(0))
    other.close()
    work.committed.clear()
    with work.coordinator() as next_driver:
        assert next_driver.run(work.evaluate(), **batch(1)).already_done
    assert work.committed == []


@pytest.mark.parametrize("newest", [True, False])
def test_overtaken_driver_whose_output_was_taken_away(work: FakeWork, newest: bool) -> None:
    """Its successor has committed it, and somebody has fetched it since."""
    other = work.coordinator()

    def commit(manifest: Manifest) -> None:
        if newest:
            other.run(work.evaluate(), **batch(1))
        raise CheckpointError("output is lost: put it back from a backup")

    driver = work.coordinator(commit_sinks=commit)
    with pytest.raises(FencedError if newest else CheckpointError) as caught:
        driver.run(work.evaluate(), **batch(0))
    assert isinstance(caught.value, FencedError) == newest
    driver.close()
    other.close()


@pytest.mark.parametrize("error", [OSError("a folder is gone"), CheckpointError("no such file")])
def test_overtaken_driver_says_so_whatever_it_stumbles_over(
    work: FakeWork, drivers: Drivers, error: Exception
) -> None:
    first, second = drivers

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        if second.head is None:
            second.run(work.evaluate("second"), **batch(0))
        raise error

    with pytest.raises(FencedError, match="another owner") as caught:
        first.run(evaluate, **batch(0))
    assert caught.value.__cause__ is error
    with pytest.raises(type(error)):
        work.coordinator().run(evaluate, **batch(1))


def test_an_epoch_is_durable_before_another_driver_commits_its_output(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own driver may have ended between the publish and the sync of the folder."""

    def dies(manifest: Manifest) -> None:
        raise OSError("killed")

    with work.coordinator(commit_sinks=dies) as first, pytest.raises(OSError, match="killed"):
        first.run(work.evaluate("b0"), **batch(0))
    steps: list[Any] = []
    monkeypatch.setattr(LocalStorage, "sync_folder", lambda self, path: steps.append(path))
    with work.coordinator(commit_sinks=lambda manifest: steps.append(manifest.epoch)) as second:
        second.run(work.evaluate("b1"), **batch(1))
    assert steps[:3] == ["manifests", 1, 2]


@pytest.mark.parametrize("dies", [False, True])
def test_driver_held_up_until_its_epoch_is_retired(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The manifest's name is free again: the epoch is over all the same."""
    first, second = work.coordinator(), work.coordinator(retained=1)
    first.run(work.evaluate("b0"), **batch(0))
    epoch = reported(work, first, "held up", **batch(1))
    for number in range(1, 5):
        second.run(work.evaluate(f"b{number}"), **batch(number))
    second._maintenance.wait()
    assert not work.storage.exists(epoch.base.path) and work.committed == [1, 2, 3, 4, 5]  # type: ignore[union-attr]
    monkeypatch.setattr(first._ownership, "check", lambda: None)
    if dies:
        monkeypatch.setattr(first._history, "check_published", lambda manifest: 1 // 0)
    with pytest.raises(ZeroDivisionError if dies else FencedError):
        epoch.complete(("out",))
    assert work.storage.exists(manifest_path(2)) == dies
    assert work.committed == [1, 2, 3, 4, 5]
    assert read_head(work.storage) == second.head
    second.run(work.evaluate("b5"), **batch(5))
    assert second.head is not None and work.text(second.head) == [f"b{n}" for n in range(6)]
    second.maintain()
    assert [e.path for e in work.storage.list("manifests") if e.path.endswith("manifest")] == [
        manifest_path(6)
    ]
    epoch.abort()
    first.close()
    second.close()


def test_older_driver_publishes_after_the_takeover(
    work: FakeWork, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the owner takes its epoch as done, or builds the next one on it."""
    first, second = drivers
    first.run(work.evaluate("b0"), **batch(0))
    epoch = reported(work, first, "first", **batch(1))
    monkeypatch.setattr(first._ownership, "check", lambda: None)

    def evaluate(inner: Epoch) -> Sequence[Any]:
        if epoch.is_open:
            epoch.complete(("out",))
        return work.evaluate("second")(inner)

    result = second.run(evaluate, **batch(1))
    assert result.already_done and second.head is not None
    assert work.text(second.head) == ["b0", "first"]

    epoch = reported(work, first, "first again", run_key="r1")
    second.run(evaluate, **batch(2))
    assert work.text(second.head) == ["b0", "first", "first again", "second"]


# ---- one driver, several threads ----------------------------------------------------------------


def test_one_epoch_at_a_time(work: FakeWork) -> None:
    with work.coordinator(epoch_wait_s=0.01) as coordinator:
        epoch = opened(coordinator, **batch(0))
        with pytest.raises(CheckpointError, match="open in this thread"):
            coordinator.open_epoch(run_key="k")
        errors: list[BaseException] = []

        def run() -> None:
            try:
                coordinator.run(work.evaluate(), run_key="k")
            except CheckpointError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert "still running after" in str(errors[0])
        epoch.abort()
        epoch.abort()
        with pytest.raises(CheckpointError, match="has ended"):
            epoch.complete()
        coordinator.run(work.evaluate(), run_key="k")


def test_epochs_of_two_threads_take_turns(work: FakeWork) -> None:
    with work.coordinator(parallelism=1, retained=100) as coordinator:
        threads = [
            threading.Thread(
                target=lambda n=n: [  # type: ignore[misc]
                    coordinator.run(work.evaluate(f"{n}-{i}"), run_key=f"{n}-{i}") for i in range(5)
                ]
            )
            for n in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert coordinator.head is not None and coordinator.head.epoch == 15
        assert sorted(work.text(coordinator.head)) == sorted(
            f"{n}-{i}" for n in range(3) for i in range(5)
        )


def test_closed_coordinator(work: FakeWork) -> None:
    coordinator = work.coordinator()
    epoch = opened(coordinator, **batch(0))
    coordinator.close()
    coordinator.close()
    assert not epoch.is_open
    with pytest.raises(CheckpointError, match="closed"):
        coordinator.open_epoch(**batch(0))


def test_construction_touches_no_owner(work: FakeWork) -> None:
    with work.coordinator() as first:
        first.run(work.evaluate(), **batch(0))
        work.coordinator()
        first.run(work.evaluate(), **batch(1))


def test_job_identity(work: FakeWork) -> None:
    first = work.coordinator()
    assert work.coordinator().job == first.job and len(first.job.application(work.storage)) == 32
    first.run(work.evaluate(), **batch(0))
    with pytest.raises(InvalidArgumentError, match="belongs to the job 'job'"):
        work.coordinator(job="other")
    for options in ({"retained": 0}, {"parallelism": 0}, {"job": ""}, {"max_parallelism": 40000}):
        with pytest.raises(InvalidArgumentError):
            work.coordinator(**options)
