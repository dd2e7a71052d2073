"""A browser for tests of pages: Debian's chromium, by Playwright, and what went wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: The programs that will do, the first one that is there.
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """The path of a browser; None if none is installed."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser without a window; the test is skipped, with the package's name, where none is."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright is not installed"
    )
    path = program()
    if path is None:
        pytest.skip("the package chromium is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        # Containers have no user whom its sandbox needs; it opens pages of this test alone.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Browser, url: str, width: int = 1024, **options: Any) -> Iterator[Page]:
    """A new visitor's page at an address, which must end without any trouble.

    Trouble is an error on the console (what its policy forbids is one), one that a script did not
    catch, and a request to another origin.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    try:
        page = context.new_page()
        page.set_default_timeout(20_000)
        trouble: list[str] = []
        origin = "/".join(url.split("/")[:3]) + "/"
        page.on(
            "console",
            lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on(
            "request",
            lambda sent: None if sent.url.startswith(origin) else trouble.append(sent.url),
        )
        page.goto(url)
        page.trouble = trouble  # type: ignore[attr-defined]
        yield page
        assert not trouble, trouble
    finally:
        context.close()
