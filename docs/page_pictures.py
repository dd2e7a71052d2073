"""Makes the pictures of the page in the guide: a job of real flights, served, and photographed.

``python docs/page_pictures.py`` in an environment with the extra ``test``, where chromium is
installed; it takes a minute or two. Nothing in them is drawn by hand; times differ from run to run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from pystate.serve.server import ServeOptions, Server

HERE = Path(__file__).resolve().parent
WIDE, NARROW = (1024, 860), (390, 860)
OPERATOR = "#/jobs/flights/operators/aircraft"
#: Names of pictures: the place, what to wait for, the size, and the colours.
PICTURES = {
    "page-job": ("#/jobs/flights", "Rows", WIDE, "light"),
    "page-job-dark": ("#/jobs/flights", "Rows", WIDE, "dark"),
    "page-job-narrow": ("#/jobs/flights", "Rows", NARROW, "light"),
    "page-groups": (f"{OPERATOR}/groups", "Heaviest keys", WIDE, "light"),
    "page-key": (f"{OPERATOR}/key?key=N725MQ", "in epoch", WIDE, "dark"),
    "page-groups-narrow": (f"{OPERATOR}/groups", "Heaviest keys", NARROW, "dark"),
    "page-key-narrow": (f"{OPERATOR}/key?key=N725MQ", "in epoch", NARROW, "dark"),
    "page-changes": (f"{OPERATOR}/changes", "changed", WIDE, "light"),
    "page-files": (f"{OPERATOR}/files", "Files of range", WIDE, "light"),
}


@contextmanager
def served(checkpoint: Path) -> Iterator[str]:
    """Serve a job; the address."""
    server = Server({"flights": str(checkpoint)}, ServeOptions(port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.url
    finally:
        server.stop()
        thread.join()


def photograph(url: str, into: Path) -> None:
    """Take all pictures."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, (place, text, (width, height), scheme) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page.goto(f"{url}/{place}")
            page.locator("main").get_by_text(text).first.wait_for()
            page.wait_for_load_state("networkidle")
            taken = page.context.new_cdp_session(page).send(
                "Page.captureScreenshot", {"format": "webp", "quality": 85}
            )
            (into / f"{name}.webp").write_bytes(b64decode(taken["data"]))
            page.close()
        browser.close()


def main(into: Path = HERE / "_static") -> None:
    """Run the job, and take pictures of it."""
    with tempfile.TemporaryDirectory() as folder:
        job = [sys.executable, "-m", "pystate.examples.flights", "--checkpoint", folder]
        subprocess.run(job, check=True)
        with served(Path(folder) / "checkpoint") as url:
            photograph(url, into)


if __name__ == "__main__":
    main()
