"""What the example of flights says of itself and of its folder, without Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pystate.examples import flights
from pystate.examples._driver import Run


def end(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, str]:
    """The folder of a run with these options, and the last line that it prints."""
    found: list[tuple[str, str]] = []

    def run(given: Run) -> int:
        found.append((given.folder, flights._whereabouts(given, given.path("alerts"))))
        return 0

    monkeypatch.setattr(flights, "_run", run)
    assert flights.main(list(arguments)) == 0
    return found[0]


def test_only_a_folder_that_stays_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, line = end(monkeypatch)
    assert not os.path.exists(folder)
    assert folder not in line and "make demo DEMO=--keep" in line
    for options in (["--keep"], ["--checkpoint", str(tmp_path / "mine")]):
        folder, line = end(monkeypatch, *options)
        assert os.path.isdir(folder)
        assert line == f"alerts: {folder}/alerts"
    assert end(monkeypatch, "--output", str(tmp_path / "out"))[1].startswith("alerts: ")


def test_the_first_line_says_what_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(rows: int | None) -> None:
        raise OSError("enough")

    monkeypatch.setattr(flights, "load_flights", stop)
    with pytest.raises(SystemExit):
        flights.main(["--checkpoint", str(tmp_path)])
    [line] = capsys.readouterr().out.splitlines()
    assert "an alert when it becomes chronically late (3 flights in a row" in line
    assert line.endswith(".") and line.count(".") == 1


def test_a_folder_has_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--checkpoint", str(tmp_path)]

    def run(given: Run) -> int:
        with pytest.raises(SystemExit, match=f"InUseError: another example runs in {tmp_path}: "):
            flights.main(arguments)
        return 0

    monkeypatch.setattr(flights, "_run", run)
    assert flights.main(arguments) == 0
    monkeypatch.setattr(flights, "_run", lambda given: 0)
    assert flights.main(arguments) == 0
