"""The guide's page on the command line shows what the commands print."""

from __future__ import annotations

import html
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pystate as ps
from pystate.cli.app import app

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"


def plain(text: str) -> str:
    """What is printed, but for times and names that are drawn."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-11-23 05:00:00", text)
    text = re.sub(r"files?, [\d.]+ KiB\.", "file, 1 KiB.", text)
    text = re.sub(r"[\d.]+ m?s\b", "1 ms", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "0" * 32, text)
    text = re.sub(r"\d+ bytes, and was written with \d+", "1 bytes, and was written with 2", text)
    text = re.sub(r"repaired-\d{8}-\d{6}-[0-9a-f]{6}", "repaired-20261123-050000-000000", text)
    lines = (line.rstrip() for line in text.strip().splitlines())
    return "\n".join(re.sub(r"  +", "  ", line) for line in lines)


def printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Carry out the page's commands in turn; damage is done where it says so."""
    monkeypatch.chdir(folder)
    with ps.open("counts", key="string", states={"n": ps.ValueState("long")}) as store:
        for size in (1000, 100, 50):
            keys = store.keys([f"key {i}" for i in range(size)])
            store["n"].update_all(keys, [size + i for i in range(size)])
            store.checkpoint()
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S):
        command, _, shown = block.partition("\n")
        if command == "$ pystate verify counts" and found:
            path = next(Path("counts/state").rglob("00000003-*.delta"))
            path.write_bytes(path.read_bytes()[:-100])
        done = CliRunner().invoke(app, shlex.split(command)[2:])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        found.append((shown, done.output.replace(str(folder), "/data")))
    return found


def drawn(path: Path) -> str:
    """The words of a picture, but for what differs from run to run."""
    words = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text("utf-8"))
    text = html.unescape(" ".join(words)).replace("\xa0", " ")
    text = re.sub(r"-[0-9a-f]{1,32}\b", "-0", re.sub(r"\b[0-9a-f]+\.delta", "0.delta", text))
    text = re.sub(r"[\d.]+ (m?s|[KM]iB|bytes)\b", "1 unit", text)
    return re.sub(r" +", " ", re.sub(r"\d\d:\d\d:\d\d", "00:00:00", text))


def test_the_pictures_show_what_is_printed(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pictures", PAGE.with_name("pictures.py"))
    assert spec is not None and spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    pictures.main(tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in (PAGE.parent / "_static").glob("*.svg"))
    for name in made:
        assert drawn(tmp_path / name) == drawn(PAGE.parent / "_static" / name)
        assert (PAGE.parent / "_static" / name).stat().st_size < 20_000


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = printed(tmp_path, monkeypatch)
    assert len(blocks) == 8
    for shown, said in blocks:
        assert plain(shown) == plain(said)
