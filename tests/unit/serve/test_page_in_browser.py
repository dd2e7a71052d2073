"""The page in a browser: each view on real checkpoints, by mouse and keyboard, as a job goes on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pystate as ps
from tests.browser import browsing, visiting
from tests.served import serving

pytest.importorskip("starlette", reason="the package starlette is not installed")
pytest.importorskip("uvicorn", reason="the package uvicorn is not installed")
pytest.importorskip("httptools", reason="the package httptools is not installed")
pytest.importorskip("playwright", reason="the package playwright is not installed")

from playwright.sync_api import Error, expect

# A busy machine is no failure.
expect.set_options(timeout=20_000)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = '<img src=x onerror="document.title=1">"></td><script>alert(1)</script>\u202e'
STATES = {
    "clicks": ps.ValueState("long", default=0),
    "pages": ps.ListState("string"),
    "seen": ps.MapState("string", "timestamp"),
    "note": ps.ValueState("string"),
}
VIEWS = [
    ("#/", "Jobs"),
    ("#/jobs/visits", "visits"),
    ("#/jobs/visits/verify", "visits"),
    ("#/jobs/visits/sql", "visits"),
    ("#/jobs/visits/operators/embedded", "embedded"),
    ("#/jobs/visits/operators/embedded/groups", "embedded"),
    ("#/jobs/visits/operators/embedded/key", "embedded"),
    ("#/jobs/visits/operators/embedded/changes", "embedded"),
    ("#/jobs/visits/operators/embedded/files", "embedded"),
    ("#/jobs/shop/operators/by%20hour/key?key=north&key=7", "by hour"),
    ("#/nowhere", "There is no such page"),
]


def visit(store: ps.Store, users: list[str], page: str) -> None:
    keys = store.keys(users)
    store["clicks"].add(keys, 1)
    store["pages"].append(keys, [page] * len(users))
    store.checkpoint()


def by_hour(folder: Path) -> None:
    """A savepoint of an operator with a key of two columns, windows and timers."""
    rows = pa.table(
        {
            "shop": ["north", "north", None],
            "till": pa.array([7, 7, 1], pa.int32()),
            "namespace": pa.array([0, 3_600_000, 0], pa.int64()),
            "sold": pa.array([1 << 60, 2, 3], pa.int64()),
        }
    )
    timers = pa.table(
        {
            "shop": ["north"],
            "till": pa.array([7], pa.int32()),
            "namespace": pa.array([3_600_000], pa.int64()),
            "timer_domain": ["event"],
            "timer_ms": [1_764_320_400_000],
        }
    )
    key = {"shop": "string", "till": "int"}
    operator = ps.StateRows(rows, key, {"sold": ps.ValueState("long")}, "long", timers)
    ps.write_state(folder, {"by hour": operator}, job="shop")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ps.Store]:
    with ps.open(tmp_path / "visits", key={"user": "string"}, states=STATES) as store:
        visit(store, [f"user {i}" for i in range(500)], "/home")
        visit(store, ["user 1", HOSTILE], HOSTILE)
        yield store


@pytest.fixture
def url(store: ps.Store, tmp_path: Path) -> Iterator[str]:
    by_hour(tmp_path / "shop")
    with serving({name: str(tmp_path / name) for name in ("visits", "shop")}) as url:
        yield url


def shows(page: Page, text: str) -> None:
    expect(page.locator("main")).to_contain_text(text)


def newest(page: Page, epoch: str) -> None:
    expect(page.locator("#newest-epoch")).to_have_text(epoch)


@pytest.mark.parametrize("width", [1024, 390])
def test_each_view_opens(browser: Browser, url: str, width: int) -> None:
    with visiting(browser, url, width) as page:
        for place, heading in VIEWS:
            page.goto(url + place)
            expect(page.locator("h1")).to_have_text(heading)
            page.wait_for_load_state("networkidle")
            assert page.locator("#trouble").is_hidden(), page.locator("#trouble").inner_text()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place


def test_a_click_on_a_key_shows_its_state(browser: Browser, url: str) -> None:
    with visiting(browser, url) as page:
        page.get_by_role("link", name="visits").click()
        page.get_by_role("link", name="embedded").click()
        page.get_by_role("link", name="Changes").click()
        page.get_by_role("link", name="user 1", exact=True).click()
        shows(page, "user = user 1")
        state = page.locator(".state", has_text="clicks")
        assert state.locator("dd").inner_text() == "2"
        assert page.locator("#key-0").input_value() == "user 1"
        assert "2 items" in page.locator(".state", has_text="pages").inner_text()


def test_a_key_is_looked_up_at_an_older_epoch(browser: Browser, url: str) -> None:
    with visiting(browser, url + "#/jobs/visits/operators/embedded/key") as page:
        page.get_by_label("user").fill("user 1")
        page.keyboard.press("Enter")
        shows(page, "in epoch 2")
        page.get_by_label("Epoch").select_option("1")
        shows(page, "in epoch 1")
        assert page.locator(".state", has_text="clicks").locator("dd").inner_text() == "1"
        page.reload()
        shows(page, "in epoch 1")
        page.get_by_label("user").fill("nobody")
        page.get_by_role("button", name="Look up").click()
        shows(page, "Nothing is known of this key")


def test_windows_timers_and_keys_of_several_columns(browser: Browser, url: str) -> None:
    with visiting(browser, url + "#/jobs/shop/operators/by%20hour/key") as page:
        page.get_by_label("shop").fill("north")
        page.get_by_label("till").fill("seven")
        page.get_by_role("button", name="Look up").click()
        page.get_by_role("alert").get_by_text("'till' is int").wait_for()
        page.trouble.clear()  # type: ignore[attr-defined] # the console tells of the status
        page.get_by_label("till").fill("7")
        page.get_by_role("button", name="Look up").click()
        shows(page, "namespace 3600000")
        # A number that JavaScript alone would round.
        assert page.locator(".state dd").first.inner_text() == str(1 << 60)
        assert page.get_by_role("table", name="Timers").locator("tbody tr").count() == 1
        page.locator("#key-0-null").check()
        page.get_by_label("till").fill("1")
        page.get_by_role("button", name="Look up").click()
        shows(page, "shop = null, till = 1")
        assert page.locator(".state dd").all_inner_texts() == ["3"]


def test_hostile_text_stays_text(browser: Browser, url: str, store: ps.Store) -> None:
    store.set_current_key(HOSTILE)
    store["note"].update(HOSTILE)
    store["seen"].put(HOSTILE, dt.datetime(2026, 11, 28, tzinfo=dt.timezone.utc))
    store.checkpoint()
    with visiting(browser, url + "#/jobs/visits/operators/embedded/changes") as page:
        page.get_by_role("link", name="<img src=x").click()
        shows(page, "in epoch 3")
        assert HOSTILE in page.locator(".state", has_text="note").inner_text()
        assert page.locator("main img, main script").count() == 0
        assert page.title().startswith("Look up")


def test_a_new_epoch_appears_without_a_reload(browser: Browser, url: str, store: ps.Store) -> None:
    with visiting(browser, url + "#/jobs/visits") as page:
        newest(page, "2")
        page.evaluate("window.stays = true")
        visit(store, ["user 7"], "/news")
        newest(page, "3")
        assert page.locator("#live").inner_text().startswith("epoch 3")
        # Whoever looks a key up sees it change, too, and keeps the focus and what he types.
        page.evaluate("location.hash = '#/jobs/visits/operators/embedded/key?key=user%207'")
        shows(page, "in epoch 3")
        page.get_by_label("user").fill("user 8, half typed")
        visit(store, ["user 7"], "/more")
        shows(page, "in epoch 4")
        assert page.locator(".state", has_text="clicks").locator("dd").inner_text() == "3"
        assert page.get_by_label("user").input_value() == "user 8, half typed"
        assert page.evaluate("document.activeElement.id") == "key-0"
        assert page.evaluate("window.stays")


def test_pause_holds_the_page_still(browser: Browser, url: str, store: ps.Store) -> None:
    with visiting(browser, url + "#/jobs/visits") as page:
        newest(page, "2")
        page.get_by_role("button", name="Pause").click()
        visit(store, ["user 7"], "/news")
        page.evaluate("new Promise(resolve => setTimeout(resolve, 1500))")
        assert page.locator("#newest-epoch").inner_text() == "2"
        page.get_by_role("button", name="Go on").click()
        newest(page, "3")


def test_the_keyboard_is_enough(browser: Browser, url: str) -> None:
    with visiting(browser, url) as page:
        page.get_by_role("link", name="visits").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        while page.evaluate("document.activeElement.textContent") != "visits":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_be_focused()
        page.locator(".chart").first.get_by_text("Epoch 2").wait_for()
        while page.evaluate("document.activeElement.className") != "drawing":
            page.keyboard.press("Tab")
        # The newest epoch is chosen first, then the one before.
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        page.locator(".chart").first.get_by_text("Epoch 1").wait_for()
        while page.evaluate("document.activeElement.textContent") != "As a table":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator(".chart").first.get_by_role("row")).to_have_count(3)


def test_everything_that_can_be_used_has_a_name(browser: Browser, url: str) -> None:
    unnamed = """() => [...document.querySelectorAll(
            'a, button, input, select, textarea, [tabindex="0"]')]
        .filter(e => e.checkVisibility() && !(e.ariaLabel || e.textContent.trim()
            || e.labels?.length)).map(e => e.outerHTML)"""
    with visiting(browser, url) as page:
        for place, _ in VIEWS:
            page.goto(url + place)
            page.wait_for_load_state("networkidle")
            assert page.evaluate(unnamed) == []
            assert page.locator("h1").count() == 1
            assert page.locator("th:not([scope])").count() == 0


def test_a_check_finds_damage(browser: Browser, url: str, tmp_path: Path) -> None:
    damaged = next((tmp_path / "visits/state").rglob("00000002-*.delta"))
    with visiting(browser, url + "#/jobs/visits/verify") as page:
        page.get_by_role("button", name="Verify now").click()
        page.get_by_text("nothing is wrong").wait_for()
        damaged.write_bytes(damaged.read_bytes()[:-20])
        page.get_by_role("button", name="Verify now").click()
        page.get_by_text("1 wrong").wait_for()
        findings = page.get_by_role("table", name="Findings")
        assert "truncated" in findings.inner_text()
        assert str(tmp_path) not in page.content()


def test_light_and_dark_are_chosen(browser: Browser, url: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with visiting(browser, url, color_scheme="dark") as page:
        dark = page.evaluate(ground)
        page.get_by_role("button", name="Colours: auto").click()
        light = page.evaluate(ground)
        assert light != dark
        page.reload()
        assert page.evaluate(ground) == light
        page.get_by_role("button", name="Colours: light").click()
        assert page.evaluate(ground) == dark


def test_a_server_that_is_away_is_told_and_looked_for(browser: Browser, url: str) -> None:
    with visiting(browser, url + "#/jobs/visits") as page:
        newest(page, "2")
        page.context.set_offline(True)
        page.get_by_text("no connection").wait_for()
        assert page.locator("#newest-epoch").inner_text() == "2"
        page.context.set_offline(False)
        page.locator("#live", has_text="epoch 2").wait_for()
        assert page.locator("#trouble").is_hidden()
        page.trouble.clear()  # type: ignore[attr-defined] # the console tells of each request


def test_nothing_else_is_allowed(browser: Browser, url: str) -> None:
    with visiting(browser, url) as page:
        page.get_by_role("link", name="visits").wait_for()
        for forbidden in (
            "() => { const made = document.createElement('script'); made.text = '1'; }",
            "() => { document.body.innerHTML = '<b>'; }",
            "() => fetch('http://127.0.0.1:9/')",
            "() => { window.setTimeout('1'); }",
            "() => { document.body.append(Object.assign(new Image(), {src: '//127.0.0.1:9/'})); }",
        ):
            page.trouble.clear()  # type: ignore[attr-defined]
            with pytest.raises(Error) if "Image" not in forbidden else nullcontext():
                page.evaluate(forbidden)
            page.evaluate("() => new Promise(resolve => setTimeout(resolve))")
            assert "Image" not in forbidden or page.trouble  # type: ignore[attr-defined]
        page.trouble.clear()  # type: ignore[attr-defined]


def test_a_token_is_asked_for_and_kept_by_the_tab(
    browser: Browser, store: ps.Store, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("what-this-test-knows")
    with (
        serving({"visits": str(tmp_path / "visits")}, token_file=str(token)) as url,
        visiting(browser, url + "#/jobs/visits") as page,
    ):
        page.get_by_label("Token", exact=True).fill("what-nobody-knows")
        page.get_by_role("button", name="Go on").click()
        expect(page.locator("#token-wrong")).to_contain_text("another one")
        page.get_by_label("Token", exact=True).fill("what-this-test-knows")
        page.keyboard.press("Enter")
        newest(page, "2")
        page.reload()
        newest(page, "2")
        assert "what-this" not in page.url + page.content()
        page.trouble.clear()  # type: ignore[attr-defined] # the console tells of each refusal


def test_a_statement_is_run(browser: Browser, url: str) -> None:
    pytest.importorskip("duckdb", reason="the package duckdb is not installed")
    with visiting(browser, url + "#/jobs/visits/sql") as page:
        box = page.get_by_label("SQL")
        expect(box).to_have_value("select * from embedded limit 20")
        box.fill(
            "select count(*) as n, max(clicks) as n, list(note) from embedded where clicks > 1"
        )
        box.press("Control+Enter")
        rows = page.get_by_role("table", name="Rows").locator("tbody tr")
        expect(rows).to_have_count(1, timeout=60_000)  # it runs in a process of its own
        assert rows.locator("td").all_inner_texts()[:2] == ["1", "2"]
        expect(page.locator("#sql-state")).to_contain_text("of epoch 2")
        box.fill("select * from read_csv('/etc/passwd')")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#sql-rows").get_by_role("alert")).to_be_visible(timeout=60_000)
        page.trouble.clear()  # type: ignore[attr-defined] # the console tells of the status
