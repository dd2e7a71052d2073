"""What notebooks show: everything that comes from users is text, and nothing is computed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.base.markup import bytes_shown, panel
from pystate.spark import EpochProgress, EpochResult, Job, OperatorProgress

EVIL = "<script>alert('x')</script>&"
SAFE = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;"


def checked(html: str, times: int = 1) -> str:
    assert "<script" not in html
    assert html.count(SAFE) == times, html
    return html


def progress(**fields: Any) -> EpochProgress:
    operator = OperatorProgress(EVIL, 2, 10_000, 5, 3, 7, 2_048, 6, 0, 0, 100, 1.0, 2.0, 3.0, 4.0)
    given: dict[str, Any] = {
        **dict.fromkeys(EpochProgress.__dataclass_fields__, 0),
        "batch_id": None,
        "run_key": "may",
        "drained": False,
        "watermark_ms": None,
        "late_rows": {},
        "side_rows": {EVIL: 1},
        "operators": (operator,),
        **fields,
    }
    return EpochProgress(**given)


def test_a_panel_escapes_whatever_it_is_given() -> None:
    html = panel(EVIL, {EVIL: EVIL, "left out": None}, [EVIL], [[EVIL], [None], [1_000], [True]])
    checked(html, 5)
    assert "left out" not in html and "<td></td>" in html
    assert "<td>1,000</td>" in html and "<td>True</td>" in html


def test_sizes() -> None:
    sizes = (0, 1023, 1024, 5 << 20, 3 << 30, 1 << 60)
    shown = ["0 bytes", "1023 bytes", "1.0 KiB", "5.0 MiB", "3.0 GiB", "1048576.0 TiB"]
    assert list(map(bytes_shown, sizes)) == shown


def test_an_epochs_progress() -> None:
    html = progress(epoch=3)._repr_html_()
    checked(html, 2)
    assert "Epoch 3" in html and "<td>10,000</td>" in html and "<td>2.0 KiB</td>" in html
    assert "evaluations" not in html
    assert "evaluations</th><td>2</td>" in progress(evaluations=2)._repr_html_()


def test_a_job_shows_where_it_stands(tmp_path: Path) -> None:
    job = Job(EVIL, checkpoint=tmp_path / "checkpoint")
    html = checked(job._repr_html_())
    assert f"checkpoint</th><td>{job.checkpoint}</td>" in html and "epoch</th><td>none" in html
    job._epochs.progress = progress(epoch=3)
    job._outcome._error = ValueError(EVIL)
    checked(job._repr_html_(), 4)
    (tmp_path / "checkpoint" / "manifests").mkdir(parents=True)
    (tmp_path / "checkpoint" / "manifests" / "00000001.manifest").write_text("damaged")
    assert "00000001.manifest" in job._repr_html_()


class NoRows:
    """A result that must not be read."""

    class schema:  # noqa: N801
        @staticmethod
        def simpleString() -> str:  # noqa: N802
            return f"struct<{EVIL}:int>"


def test_a_result_shows_no_rows() -> None:
    frame: Any = NoRows()
    html = EpochResult(4, EVIL, frame, False, None)._repr_html_()
    checked(html, 2)
    assert "computed</th><td>now" in html
    assert "computed</th><td>before" in EpochResult(4, None, frame, True, None)._repr_html_()


def test_states_show_what_the_current_key_has(tmp_path: Path) -> None:
    states = {
        "n": ps.ValueState("string"),
        "objects": ps.ValueState(object),
        "list": ps.ListState("string"),
        "map": ps.MapState("string", "long"),
        "most": ps.ReducingState("long", max),
        "mean": ps.AggregatingState(ps.Mean()),
        "<b>": ps.ValueState("long", default=3),
    }
    with ps.open(tmp_path / "store", key="string", states=states) as store:
        html = store["n"]._repr_html_()
        assert html.startswith("<div><b>State n</b>") and "key" not in html
        assert "kind</th><td>ValueHandle" in html and "type</th><td>string" in html
        store.set_current_key(EVIL)
        store["n"].update(EVIL)
        store["list"].add_all(["a", "b"])
        store["map"].put(EVIL, 1)
        store["mean"].add(1.0)
        checked(store["n"]._repr_html_(), 2)
        assert "length</th><td>2</td>" in checked(store["list"]._repr_html_())
        assert "length</th><td>1</td>" in checked(store["map"]._repr_html_())
        assert "type</th><td>string, long" in store["map"]._repr_html_()
        assert "value</th><td>None" in store["most"]._repr_html_()
        html = store["mean"]._repr_html_()
        assert "value</th><td>1.0" in html and "AggregatingHandle" in html
        assert "State &lt;b&gt;" in store["<b>"]._repr_html_()
        # Nothing was written by looking.
        assert "value</th><td>None" in store["objects"]._repr_html_()
        assert store.checkpoint() == 1 and store.checkpoint() == 1

        html = store._repr_html_()
        assert "checkpoint</th><td>1</td>" in html and "keys</th><td>1</td>" in html
        assert "<td>&lt;b&gt;</td>" in html and "AggregatingState(Mean()" in html
    assert ", closed" in store._repr_html_()
    with pytest.raises(ps.PystateError):
        store["n"].value()
    assert "State n" in store.states["n"]._repr_html_()
