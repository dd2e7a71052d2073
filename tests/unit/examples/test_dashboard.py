"""The page of the dashboard, over states that are written without Spark."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import CheckpointError, InvalidArgumentError, MissingPackageError

pytest.importorskip("starlette", reason="the package starlette is not installed")
pytest.importorskip("uvicorn", reason="the package uvicorn is not installed")

from pystate.examples import dashboard
from pystate.examples._dashboard_page import Figures, Page, asked
from tests.browser import browsing, visiting

KEY = {"product": "string"}
COUNTS = {"orders": ps.ValueState("long"), "cents": ps.ValueState("long")}
ORDERS = dashboard.make_orders(60)


def write(folder: Path, orders: list[dict[str, Any]], *, closed: int, lost: int = 0) -> None:
    """A checkpoint that has counted orders: so many hours are over, and so many are lost."""
    rows: list[dict[str, Any]] = [
        {"product": product, "namespace": hour, "orders": number, "cents": cents}
        for (product, hour), (number, cents) in dashboard.recompute(orders).items()
    ]
    rows.sort(key=lambda row: row["namespace"])
    names = sorted({row["product"] for row in rows})
    over = {
        name: [
            (row["namespace"], {"orders": row["orders"], "cents": row["cents"]})
            for row in rows[lost:closed]
            if row["product"] == name
        ]
        for name in names
    }
    history = pa.table(
        {
            "product": names,
            "hours": pa.array(
                [over[name] for name in names],
                pa.map_(pa.int64(), pa.struct([("orders", pa.int64()), ("cents", pa.int64())])),
            ),
        }
    )
    totals = [
        {
            "product": name,
            **{n: sum(r[n] for r in rows if r["product"] == name) for n in COUNTS},
        }
        for name in names
    ]
    operators = {
        "products": ps.StateRows(pa.Table.from_pylist(totals), KEY, COUNTS),
        "hours": ps.StateRows(pa.Table.from_pylist(rows[closed:]), KEY, COUNTS, namespace="long"),
        "history": ps.StateRows(history, KEY, dashboard.History()),
    }
    ps.write_state(folder, operators, parallelism=1)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def get(page: Page, path: str, host: str | None = None) -> Answer:
    connection = http.client.HTTPConnection(page.url.split("/")[2], timeout=30)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())
    finally:
        connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "checkpoint", ORDERS, closed=30)
    return tmp_path / "checkpoint"


@pytest.fixture
def page(folder: Path) -> Iterator[Page]:
    with Page(Figures(str(folder))) as page:
        yield page


def test_both_parts_are_all_orders(page: Page) -> None:
    said = asked(page.url)
    assert said["total"] == {"orders": 60, "cents": sum(order["cents"] for order in ORDERS)}
    assert said["history"]["orders"] > 0 and said["live"]["orders"] > 0
    assert said["history"]["orders"] + said["live"]["orders"] == 60
    assert dashboard.both(said) == dashboard.recompute(ORDERS)
    assert sum(each["orders"] for each in said["products"]) == 60
    assert said == asked(page.url, said["epoch"])


def test_what_is_right_is_verified(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    checks = dashboard.Checks(page.url, ORDERS)
    checks.published(asked(page.url)["epoch"])
    assert checks.end()
    said = capsys.readouterr().out.replace("\n", " ")
    assert said.startswith("verified: ") and "are the 60 of the input" in said
    assert "in 1 epoch" in said


@pytest.mark.parametrize(
    ("count", "lost", "said"),
    [(60, 3, "in epoch 1 the "), (59, 0, "59 of 60 orders are counted")],
    ids=["an hour is lost", "an order was not read"],
)
def test_what_is_wrong_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, lost: int, said: str
) -> None:
    write(tmp_path / "c", ORDERS[:count], closed=30, lost=lost)
    with Page(Figures(str(tmp_path / "c"))) as page:
        assert not dashboard.Checks(page.url, ORDERS).end()
    printed = capsys.readouterr()
    assert said in printed.err and "verified" not in printed.out


def test_an_epoch_that_could_not_be_asked_for_is_not_verified(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = dashboard.Checks(page.url, ORDERS)
    with pytest.raises(CheckpointError, match="epoch 7 is not there"):
        checks.published(7)
    assert not checks.end()
    assert "does not show epoch 7" in capsys.readouterr().err


def test_the_page_waits_for_the_first_epoch(tmp_path: Path) -> None:
    with Page(Figures(str(tmp_path / "c"))) as page:
        said = asked(page.url)
        assert said["epoch"] == 0 and said["total"] == {"orders": 0, "cents": 0}
        with pytest.raises(CheckpointError, match="the page says: epoch 1 is not there"):
            asked(page.url, 1)
        write(tmp_path / "c", ORDERS, closed=30)
        assert asked(page.url)["total"]["orders"] == 60


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/figures?epoch=x", 400, "epoch 'x' is no number"),
        ("/figures?epoch=99", 404, "epoch 99 is not there"),
        ("/figures?epoch=0", 404, "epoch 0 is not there"),
        ("/other.js", 404, "not found"),
        ("/..%2fdashboard.py", 404, ""),
    ],
)
def test_what_is_not_there(page: Page, path: str, status: int, said: str) -> None:
    answer = get(page, path)
    assert answer.status == status and said in answer.body.decode()


def test_the_files_need_nothing_from_elsewhere(page: Page) -> None:
    document = get(page, "/")
    assert document.status == 200 and document.headers["content-type"].startswith("text/html")
    assert document.headers["content-security-policy"].startswith("default-src 'self'")
    for name in ("dashboard.css", "dashboard.js"):
        assert name in document.body.decode()
        answer = get(page, f"/{name}")
        assert answer.status == 200 and b"//" not in answer.body.replace(b"// ", b"").replace(
            b'"http://www.w3.org/2000/svg"', b""
        )
    assert json.loads(get(page, "/figures", "localhost").body)["epoch"] == 1
    assert get(page, "/figures", "shop.example").status == 400


def test_a_port_that_is_taken_is_one_line(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidArgumentError, match=rf"--port {port} .*: give another"):
            Page(Figures(str(folder)), port)


def test_a_missing_package_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingPackageError, match=r"needs starlette and uvicorn .* 'demo'"):
        Page(Figures(str(folder)))


@pytest.mark.parametrize(("width", "scheme"), [(1024, "light"), (390, "dark")])
def test_the_page_in_a_browser(tmp_path: Path, width: int, scheme: str) -> None:
    with (
        browsing() as browser,
        Page(Figures(str(tmp_path / "c"))) as served,
        visiting(browser, served.url, width=width, color_scheme=scheme) as page,
    ):
        page.get_by_text("waiting for the first epoch").wait_for()
        assert not page.locator("main").is_visible()
        # A new epoch is shown without a reload.
        write(tmp_path / "c", dashboard.make_orders(12_000), closed=200)
        page.get_by_text("epoch 1").wait_for()
        said = asked(served.url)
        for part in ("history", "live", "total"):
            assert page.locator(f"#{part}").inner_text() == f"{said[part]['orders']:,}"
        assert page.locator("#hours rect.history").count() > 0
        assert page.locator("#hours rect.live").count() > 0
        assert page.locator("#products tr").count() == len(said["products"])
        # No part of the page is wider than the screen.
        for part in ("html", "section >> nth=0", "section >> nth=1", "section >> nth=2"):
            sizes = page.locator(part).evaluate("each => [each.scrollWidth, each.clientWidth]")
            assert sizes[0] == sizes[1] <= width
        # An hour is chosen with the keyboard, or where the pointer is.
        page.keyboard.press("Tab")
        page.keyboard.press("Home")
        assert page.locator("#chosen").inner_text() == of_hour(said, "history", first=True)
        page.locator("#hours").hover(position={"x": width - 100 - 2 * 16, "y": 5})
        assert page.locator("#chosen").inner_text() != of_hour(said, "history", first=True)
        page.keyboard.press("End")
        assert page.locator("#chosen").inner_text() == of_hour(said, "live", first=False)


def of_hour(said: dict[str, Any], part: str, *, first: bool) -> str:
    """What the page says of the first or last hour of a part."""
    hour = said[part]["hours"][0 if first else -1]["hour"]
    number = sum(
        row["orders"]
        for each in ("history", "live")
        for row in said[each]["hours"]
        if row["hour"] == hour
    )
    at = datetime.fromtimestamp(hour / 1000, timezone.utc)
    return f"{at:%Y-%m-%d %H:%M} UTC: {number} orders, {part}"
