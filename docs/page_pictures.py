"""Makes the pictures of pages in the guide: examples that run, photographed in a browser.

``python docs/page_pictures.py`` in an environment with the extra ``test``, where chromium is
installed; it takes some minutes. Nothing in them is drawn by hand; times differ from run to run.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

from pystate.serve.server import ServeOptions, Server

HERE = Path(__file__).resolve().parent
WIDE, NARROW = (1024, 860), (390, 860)
OPERATOR = "#/jobs/flights/operators/aircraft"


class Picture(NamedTuple):
    """A place of a page, a text to wait for, the size, and the colours."""

    place: str
    text: str
    size: tuple[int, int]
    scheme: str


#: What `pystate serve` shows of the example `flights`, and the page of `dashboard`.
SERVED = {
    "page-job": Picture("#/jobs/flights", "Rows", WIDE, "light"),
    "page-job-dark": Picture("#/jobs/flights", "Rows", WIDE, "dark"),
    "page-job-narrow": Picture("#/jobs/flights", "Rows", NARROW, "light"),
    "page-groups": Picture(f"{OPERATOR}/groups", "Heaviest keys", WIDE, "light"),
    "page-key": Picture(f"{OPERATOR}/key?key=N725MQ", "in epoch", WIDE, "dark"),
    "page-groups-narrow": Picture(f"{OPERATOR}/groups", "Heaviest keys", NARROW, "dark"),
    "page-key-narrow": Picture(f"{OPERATOR}/key?key=N725MQ", "in epoch", NARROW, "dark"),
    "page-changes": Picture(f"{OPERATOR}/changes", "changed", WIDE, "light"),
    "page-files": Picture(f"{OPERATOR}/files", "Files of range", WIDE, "light"),
}
DASHBOARD = {
    "dashboard": Picture("", "Products", WIDE, "light"),
    "dashboard-narrow": Picture("", "Products", (390, 1040), "dark"),
}


@contextmanager
def running(example: str, checkpoint: str, *, epochs: int, until: int) -> Iterator[str]:
    """Run an example, which has reached an epoch and goes on; what it has printed."""
    options = ["--checkpoint", checkpoint, "--epochs", str(epochs)]
    command = [sys.executable, "-m", f"pystate.examples.{example}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        printed = ""
        for line in job.stdout or ():
            printed += line
            if re.match(rf" *{until} ", line):
                break
        else:
            raise SystemExit(f"the example {example} has ended before epoch {until}: {printed}")
        yield printed
        job.send_signal(signal.SIGINT)
        job.communicate()


@contextmanager
def served(checkpoint: Path) -> Iterator[str]:
    """Serve a job; the address."""
    server = Server({"flights": str(checkpoint)}, ServeOptions(port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"{server.url}/"
    finally:
        server.stop()
        thread.join()


def photograph(browser: Browser, url: str, pictures: Mapping[str, Picture], into: Path) -> None:
    """Take pictures of a page."""
    for name, (place, text, (width, height), scheme) in pictures.items():
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page.goto(f"{url}{place}")
        page.locator("main").get_by_text(text).first.wait_for()
        page.wait_for_load_state("networkidle")
        taken = page.context.new_cdp_session(page).send(
            "Page.captureScreenshot", {"format": "webp", "quality": 85}
        )
        (into / f"{name}.webp").write_bytes(b64decode(taken["data"]))
        page.close()


def main(into: Path = HERE / "_static") -> None:
    """Run both examples, and take pictures of them."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        with running("dashboard", f"{folder}/shop", epochs=12, until=8) as printed:
            photograph(browser, printed.split()[2], DASHBOARD, into)
        with (
            running("flights", f"{folder}/flights", epochs=32, until=16),
            served(Path(folder, "flights", "checkpoint")) as url,
        ):
            photograph(browser, url, SERVED, into)
        browser.close()


if __name__ == "__main__":
    main()
