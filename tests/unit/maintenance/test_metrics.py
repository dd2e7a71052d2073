"""Metrics: of checkpoints, of jobs in this process, and the dashboard that shows them."""

from __future__ import annotations

import gc
import json
import re
import shutil
import threading
from importlib.resources import files
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as parsed
from typer.testing import CliRunner

import pystate as ps
from pystate.checkpoint.epoch_log import EpochRecord, OperatorRecord, _epoch_fields
from pystate.checkpoint.manifest_log import read_head
from pystate.cli.app import app
from pystate.errors import InvalidArgumentError, MissingPackageError, WrongTypeError
from pystate.maintenance import prometheus
from pystate.maintenance.figures import BY_NAME, METRICS, JobFigures
from pystate.maintenance.prometheus import DriverMetrics, FiguresCollector, exposition
from tests.compat.test_golden import HERE as GOLDEN
from tests.work import Work

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
Values = dict[tuple[str, ...], float]


def values(collector: FiguresCollector) -> Values:
    """What a scrape gets, by the names of metrics and the values of their labels."""
    data, content_type = exposition(collector)
    assert content_type.startswith("text/plain")
    found: Values = {}
    for family in parsed(data.decode()):
        for sample in family.samples:
            metric = BY_NAME[sample.name]
            assert family.type == metric.kind and set(sample.labels) == set(metric.labels)
            assert family.documentation == metric.text
            labels = tuple(sample.labels[name] for name in metric.labels)
            key = (sample.name.removeprefix("pystate_"), *labels)
            assert key not in found
            found[key] = sample.value
    return found


def scraped(*roots: Path, **options: Any) -> Values:
    """One scrape by a reader that has seen nothing before."""
    with ps.CheckpointMetrics({root.name: root for root in roots}, **options) as metrics:
        return values(metrics)


def counters(found: Values) -> Values:
    return {key: n for key, n in found.items() if BY_NAME[f"pystate_{key[0]}"].kind == "counter"}


def assert_no_less(before: Values, after: Values) -> None:
    assert counters(before).keys() <= counters(after).keys()
    assert {key: n for key, n in counters(before).items() if after[key] < n} == {}


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "job").some(5)


# ---- names ---------------------------------------------------------------------------------------


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"pystate_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not re.search(r"_(ms|millis|mb|kb|count|sum|bucket|info)\b", metric.name)
        # Prometheus itself gives these labels.
        assert not {"job", "instance", "le", "quantile"} & set(metric.labels)
        assert metric.text[0].isupper() or metric.text[0].isdigit()
        assert not metric.text.endswith(".") and "\n" not in metric.text


# ---- of checkpoints ------------------------------------------------------------------------------


def test_a_checkpoint_of_a_job(work: Work) -> None:
    found = scraped(work.root)
    head = read_head(work.storage)
    records = ps.history(work.root).records
    assert head is not None and head.epoch == 5
    assert found["epoch", "job"] == 5 and found["epochs_total", "job"] == 5
    assert found["retained_epochs", "job"] == 3 and found["checkpoint_readable", "job"] == 1
    assert found["checkpoint_timestamp_seconds", "job"] == head.created_ms / 1000
    assert 0 <= found["checkpoint_age_seconds", "job"] < 600
    assert found["driver_starts_total", "job"] == 1 and found["driver_running", "job"] == 0
    assert found["output_committed", "job"] == 1 and found["retries_total", "job"] == 0
    assert found["operators", "job"] == 1
    [operator] = head.operators
    assert found["operator_ranges", "job", "op"] == 2
    assert found["operator_files", "job", "op", "delta"] == len(operator.files)
    size = sum(ref.file_bytes for ref in operator.files)
    assert found["operator_file_bytes", "job", "op", "delta"] == size
    assert found["operator_written_bytes_total", "job", "op", "delta"] == sum(
        record.operators[0].checkpoint_bytes for record in records
    )
    assert found["range_file_bytes", "job", "op", "0"] + found[
        "range_file_bytes", "job", "op", "1"
    ] == pytest.approx(size, abs=2)
    assert found["range_files", "job", "op", "1", "delta"] == len(operator.ranges[1].files)
    assert found["epoch_duration_seconds", "job", "total"] == records[-1].total_ms / 1000
    total_s = sum(record.total_ms for record in records) / 1000
    assert found["epoch_time_seconds_total", "job", "total"] == pytest.approx(total_s)
    assert ("watermark_lag_seconds", "job") not in found


def test_a_new_epoch_is_seen(work: Work) -> None:
    with ps.CheckpointMetrics({"job": work.root}, refresh_seconds=0) as metrics:
        found = values(metrics)
        for epoch in range(6, 12):
            work.some(1)
            before, found = found, values(metrics)
            assert found["epoch", "job"] == found["epochs_total", "job"] == epoch
            assert found["driver_starts_total", "job"] == epoch - 4
            assert_no_less(before, found)
        for _ in range(3):  # drivers whose records are in three files
            work.some(1)
        assert values(metrics)["epochs_total", "job"] == 14
        work.some(1)
        found = values(metrics)
        assert found["epochs_total", "job"] == 15
    assert counters(scraped(work.root)) == pytest.approx(counters(found))


def test_scrapes_in_quick_succession_look_once(work: Work) -> None:
    with ps.CheckpointMetrics({"job": work.root}, refresh_seconds=3600) as metrics:
        before = values(metrics)
        work.some(1)
        after = values(metrics)
    assert counters(before) == counters(after)


def test_counters_go_on_where_records_were_removed(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pystate.checkpoint.epoch_log._SIZES", (1, 2, 3))
    monkeypatch.setattr("pystate.checkpoint.epoch_log._FULL", 4)
    monkeypatch.setattr("pystate.checkpoint.epoch_log.EpochLog.__init__.__defaults__", (4,))
    found = scraped(work.root)
    with work.coordinator() as coordinator:
        for number in range(11):
            work.run(coordinator, {number: 1})
    for _ in range(4):
        work.some(1)
        before, found = found, scraped(work.root)
        assert_no_less(before, found)
    assert len(ps.history(work.root).records) < 15
    assert found["epochs_total", "job"] == found["epoch", "job"] == 20


def test_a_checkpoint_that_is_set_back_counts_anew(work: Work, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(work.root, copy)
    work.some(4)
    with ps.CheckpointMetrics({"job": work.root}, refresh_seconds=0) as metrics:
        assert values(metrics)["epochs_total", "job"] == 9
        shutil.rmtree(work.root)
        shutil.copytree(copy, work.root)
        found = values(metrics)
    assert found["epochs_total", "job"] == found["epoch", "job"] == 5


def test_an_epoch_whose_record_comes_later(work: Work) -> None:
    """As between a manifest and its record; a killed driver's newest one never comes."""
    [path] = (work.root / "history").iterdir()
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with ps.CheckpointMetrics({"job": work.root}, refresh_seconds=0) as metrics:
        found = values(metrics)
        assert found["epoch", "job"] == 5 and found["epochs_total", "job"] == 4
        assert found["epoch_duration_seconds", "job", "total"] > 0  # that of the epoch before
        path.write_bytes(data)
        assert values(metrics)["epochs_total", "job"] == 5
        path.write_bytes(b"".join(lines[:-1]))
        work.some(1)
        found = values(metrics)
        assert found["epoch", "job"] == found["epochs_total", "job"] == 6


def test_what_cannot_be_read_keeps_its_figures(work: Work, tmp_path: Path) -> None:
    checkpoints = {"job": work.root, "other": tmp_path / "other"}
    with ps.CheckpointMetrics(checkpoints, refresh_seconds=0) as metrics:
        found = values(metrics)
        assert found["checkpoint_readable", "job"] == 1
        assert found["checkpoint_readable", "other"] == 0 and ("epoch", "other") not in found
        work.some(1)
        (work.root / "manifests" / "00000006.manifest").write_bytes(b"damaged")
        Work(tmp_path / "other").some(1)
        found = values(metrics)
        assert found["checkpoint_readable", "job"] == 0 and found["epoch", "job"] == 5
        assert found["checkpoint_readable", "other"] == found["epoch", "other"] == 1
        assert str(tmp_path) not in exposition(metrics)[0].decode()


def test_a_savepoint(work: Work, tmp_path: Path) -> None:
    ps.savepoint(work.root, tmp_path / "saved")
    found = scraped(tmp_path / "saved")
    assert found["epoch", "saved"] == 5 and ("epochs_total", "saved") not in found
    assert found["operator_ranges", "saved", "op"] == 2


@pytest.mark.parametrize("home", ["heap", "disk"])
def test_a_store(home: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    declared = {"n": ps.ValueState("long")}
    for _ in range(2):
        with ps.open(root, key="long", states=declared, home=home) as store:
            store["n"].update_all(store.keys(range(100)), range(100))
            store.checkpoint()
            found = scraped(root)
        assert found["operator_keys", "store", "embedded"] >= 100
        assert found["operator_state_bytes", "store", "embedded"] > 0
    assert found["operator_rows_changed_total", "store", "embedded"] == 200
    assert (found["operator_cache_misses_total", "store", "embedded"] > 0) == (home == "disk")
    assert (found["operator_read_bytes_total", "store", "embedded"] > 0) == (home == "disk")
    assert ("driver_starts_total", "store") not in found
    assert ("rows_in_total", "store") not in found


@pytest.mark.parametrize("version", sorted(path.name for path in GOLDEN.glob("v*")))
def test_stores_of_earlier_versions(version: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / version / "store", tmp_path / "old")
    found = scraped(tmp_path / "old")
    assert found["checkpoint_readable", "old"] == 1 and found["epoch", "old"] > 0
    assert found["operator_file_bytes", "old", "embedded", "delta"] > 0


@pytest.mark.parametrize("version", sorted(path.name for path in GOLDEN.glob("records*")))
def test_records_of_earlier_versions(version: str, tmp_path: Path) -> None:
    root = tmp_path / "old"
    shutil.copytree(GOLDEN / version, root)
    ps.repair(root, owner_is_gone=True)
    found = scraped(root)
    assert found["epochs_total", "old"] == found["epoch", "old"] == 3
    assert found["operator_time_seconds_total", "old", "op", "write"] >= 0


def test_time_of_events_and_its_end() -> None:
    figures, base = JobFigures("j"), read_golden()
    figures.update(replaced(base, watermark_ms=7_000, processing_time_ms=9_500))
    found = {sample.name: sample.value for sample in figures.samples(base.created_ms / 1000 + 3)}
    assert found["pystate_watermark_timestamp_seconds"] == 7
    assert found["pystate_watermark_lag_seconds"] == 2.5
    assert found["pystate_checkpoint_age_seconds"] == 3
    figures.update(replaced(base, watermark_ms=ps.MAX_WATERMARK))
    found = {sample.name: sample.value for sample in figures.samples(0)}
    assert not any("watermark" in name for name in found)
    assert found["pystate_checkpoint_age_seconds"] == 0  # the clocks differ


def read_golden() -> Any:
    from pystate.checkpoint.storage import LocalStorage

    head = read_head(LocalStorage(GOLDEN / "v7" / "store"))
    assert head is not None
    return head


def replaced(manifest: Any, **fields: Any) -> Any:
    from dataclasses import replace

    return replace(manifest, **fields)


# ---- many jobs, operators and ranges ------------------------------------------------------------


def test_limits_leave_out_whole_operators(tmp_path: Path) -> None:
    wide = Work(tmp_path / "a", uids=("x", "y")).some(1, parallelism=8)
    narrow = Work(tmp_path / "b", uids=("x", "y", "z")).some(1, parallelism=2)
    found = scraped(wide.root, narrow.root)
    assert found["ranges_left_out",] == found["operators_left_out",] == 0
    assert len([key for key in found if key[0] == "range_keys"]) == 22
    found = scraped(wide.root, narrow.root, most_ranges=11)
    assert found["ranges_left_out",] == 8 + 2 + 2 and found["operators_left_out",] == 0
    ranges = [key[1:3] for key in found if key[0] == "range_keys" and key[3] == "0"]
    assert ranges == [("a", "x"), ("b", "x")]
    found = scraped(wide.root, narrow.root, most_operators=3, most_ranges=0)
    assert found["ranges_left_out",] == 22 and found["operators_left_out",] == 2
    assert [key[1:] for key in found if key[0] == "operator_ranges"] == [
        *[("a", "x"), ("a", "y")],
        ("b", "x"),
    ]
    assert found["operators", "b"] == 3


def test_samples_of_operators_are_made_once_an_epoch(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    inner = JobFigures.operators
    monkeypatch.setattr(JobFigures, "operators", lambda self: made.append(self.job) or inner(self))
    with ps.CheckpointMetrics({"job": work.root}, refresh_seconds=0) as metrics:
        for _ in range(3):
            values(metrics)
        assert made == ["job"]
        work.some(1)
        values(metrics)
        assert made == ["job"] * 2


def test_a_slow_checkpoint_holds_nobody_up(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Work(tmp_path / "slow").some(1)
    go_on, inner = threading.Event(), prometheus.CheckpointFigures.look

    def look(self: Any) -> None:
        if self.figures.job == "slow":
            assert go_on.wait(60)
        inner(self)

    monkeypatch.setattr(prometheus.CheckpointFigures, "look", look)
    checkpoints = {"job": work.root, "slow": slow.root}
    with ps.CheckpointMetrics(checkpoints, refresh_seconds=0, wait_seconds=0.5) as metrics:
        found = values(metrics)
        assert found["epoch", "job"] == 5
        assert not any("slow" in key for key in found)
        go_on.set()
        assert values(metrics)["epoch", "slow"] == 1


# ---- of jobs in this process --------------------------------------------------------------------


def of(registry: CollectorRegistry) -> Values:
    """All samples of a registry, by name and the values of labels."""
    return {
        (s.name.removeprefix("pystate_"), *(s.labels[n] for n in BY_NAME[s.name].labels)): s.value
        for family in registry.collect()
        for s in family.samples
    }


def driver(registry: CollectorRegistry, work: Work) -> DriverMetrics:
    made = DriverMetrics(registry, "job")
    made.begin(work.name, str(work.root))
    return made


def test_a_job_has_the_figures_of_its_checkpoint(tmp_path: Path) -> None:
    registry, work = CollectorRegistry(), Work(tmp_path / "job")
    listener = driver(registry, work)
    with work.coordinator(listeners=[listener]) as coordinator:
        for number in range(3):
            work.run(coordinator, {number: 1})
        with pytest.raises(ZeroDivisionError):
            coordinator.run(lambda epoch: [1 // 0], retryable=lambda _: False)
    mine, read = of(registry), scraped(work.root)
    assert mine["checkpoints_aborted_total", "job"] == 1
    names = {name for name, *_ in mine}
    assert names == {
        metric.name.removeprefix("pystate_")
        for metric in METRICS
        if metric.only != "checkpoint" and "watermark" not in metric.name
    } - {"rows_in_total", "rows_out_total", "rows_late_total", "operator_rows_late_total"}
    for key, value in mine.items():
        if key[0] not in ("checkpoints_aborted_total", "collect_duration_seconds"):
            assert key in read
        if key[0] not in ("checkpoints_aborted_total",) and "seconds" not in key[0]:
            assert value == read[key], key


def test_jobs_share_a_registry(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    works = [Work(tmp_path / name, name="same") for name in ("a", "b")]
    listeners = [driver(registry, work) for work in works]
    for work, listener in zip(works, listeners, strict=True):
        work.some(2, listeners=[listener])
    again = driver(registry, works[0])  # made anew beside the first one, as in a notebook
    works[0].some(1, listeners=[again])
    found = of(registry)
    assert found["epochs_total", "same"] == 3 and found["epochs_total", "same-2"] == 2
    assert found["driver_starts_total", "same"] == 2
    data = prometheus_client.generate_latest(registry).decode()
    assert data.count("# TYPE pystate_epoch gauge") == 1
    filtered = registry.restricted_registry(["pystate_epoch"])
    assert [family.name for family in filtered.collect()] == ["pystate_epoch"]
    del listeners, again, listener
    gc.collect()
    assert {name for name, *_ in of(registry)} == {
        "operators_left_out",
        "ranges_left_out",
        "collect_duration_seconds",
    }


def test_one_registry_has_each_metric_once(work: Work) -> None:
    registry = CollectorRegistry()
    with ps.CheckpointMetrics({"job": work.root}) as metrics:
        registry.register(metrics)
        with pytest.raises(InvalidArgumentError, match=r"^job 'job': metrics has a collector with"):
            driver(registry, work)


def test_an_epoch_counts_once(work: Work) -> None:
    figures = JobFigures("j")
    record = EpochRecord(3, 1, 1, operators=(OperatorRecord("op", 1, rows_in=5),), rows_in=5)
    figures.update(None, [record, record])
    figures.update(None, [record])
    found = {sample.name: sample.value for sample in figures.samples(0)}
    assert found["pystate_epochs_total"] == 1 and found["pystate_rows_in_total"] == 5


# ---- wrong use ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, 3, "x", ["x"], {"": "x"}, {3: "x"}])
def test_checkpoints_have_names(given: Any) -> None:
    with pytest.raises(WrongTypeError, match=r"^CheckpointMetrics: checkpoints is a mapping"):
        ps.CheckpointMetrics(given)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    for make in (lambda: ps.CheckpointMetrics({}), lambda: DriverMetrics(3, "job 'j'")):
        with pytest.raises(MissingPackageError, match=r"metrics need prometheus_client .*metrics"):
            make()


# ---- the dashboard -------------------------------------------------------------------------------


def expressions() -> list[str]:
    document = json.loads((files("pystate.maintenance") / "dashboard.json").read_text("utf-8"))
    found = [v["query"]["query"] for v in document["templating"]["list"] if v["type"] == "query"]
    for panel in document["panels"]:
        found += [target["expr"] for target in panel.get("targets", ())]
    return found


def test_the_dashboard_shows_what_there_is() -> None:
    found = expressions()
    assert len(found) > 25
    shown = set()
    for expression in found:
        names = re.findall(r"\bpystate_\w+", expression)
        assert names, expression
        shown |= set(names)
        labels: set[str] = set()
        for name, matchers in re.findall(r"(pystate_\w+)(?:\{([^}]*)\})?", expression):
            used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers))
            assert used <= set(BY_NAME[name].labels), expression
            labels |= set(BY_NAME[name].labels)
        for grouped in re.findall(r"(?:by|on|group_left)\s*\(([^)]*)\)", expression):
            assert {label.strip() for label in grouped.split(",")} <= labels, expression
        for counter in re.findall(r"(?:rate|increase)\((pystate_\w+)", expression):
            assert BY_NAME[counter].kind == "counter", expression
        for name in names:
            if BY_NAME[name].kind == "counter":
                assert re.search(rf"(rate|increase)\({name}", expression), expression
    assert shown <= set(BY_NAME) and len(shown) > 25


def test_legends_and_places_of_the_dashboard() -> None:
    document = json.loads((files("pystate.maintenance") / "dashboard.json").read_text("utf-8"))
    taken = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not taken & cells and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            labels = {
                label
                for name in re.findall(r"\bpystate_\w+", target["expr"])
                for label in BY_NAME[name].labels
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))


def test_the_dashboard_is_printed() -> None:
    done = CliRunner().invoke(app, ["dashboard"])
    assert done.exit_code == 0
    assert json.loads(done.output)["title"] == "pystate"


# ---- the guide -----------------------------------------------------------------------------------


def test_the_guide_has_every_metric() -> None:
    rows = re.findall(r"^\| `(pystate_\w+)` \| (.+) \|$", PAGE.read_text("utf-8"), re.M)
    only = {"": "", "job": " (only from the job itself)", "checkpoint": " (only from checkpoints)"}
    assert rows == [
        (
            metric.name,
            f"{metric.kind} | {metric.unit} | "
            f"{', '.join(f'`{label}`' for label in metric.labels)} | "
            f"{metric.text}{only[metric.only]}",
        )
        for metric in METRICS
    ]


def test_the_guide_has_every_field_of_an_epochs_line() -> None:
    [table] = re.findall(r"\| field \| what it is \|\n(.*?)\n\n", PAGE.read_text("utf-8"), re.S)
    named = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == set(_epoch_fields(EpochRecord(1, 1, 1), "job", "x"))


def test_the_guides_alerts_are_of_what_there_is() -> None:
    [alerts] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    names = re.findall(r"\bpystate_\w+", alerts)
    assert len(names) > 10 and set(names) <= set(BY_NAME)
    for counter in re.findall(r"(?:rate|increase)\((pystate_\w+)", alerts):
        assert BY_NAME[counter].kind == "counter"
