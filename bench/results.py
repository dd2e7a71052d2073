"""Results as JSON: a file for each question, with its machine, versions, commit and scale."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure import SCALES, Row, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Scale

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("pystate-spark", "pyspark", "numpy", "pyarrow", "pandas", "duckdb", "lmdb", "rocksdict")
"""Packages whose versions are noted."""
PROBE_SECONDS = 0.5
PROBED_BYTES = 1 << 28
"""More than a cache holds."""
PROBED_READS = 1 << 21


class NotInstalledError(Exception):
    """What a question needs is not installed; the message says how to install it."""


@dataclasses.dataclass
class Answer:
    """The rows of a question, and under which conditions they were measured.

    `busy` is the share of all cores that others used, and `read_ns` how long a random read from
    memory took, both just before and just after. `error` says why there is no answer.
    """

    question: str
    time: str
    commit: str
    scale: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    busy: tuple[float, float] = (0.0, 0.0)
    read_ns: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    error: str = ""
    rows: list[Row] = dataclasses.field(default_factory=list)


@contextmanager
def asked(question: str, scale: Scale, folder: Path) -> Iterator[Answer]:
    """Note the conditions of a question, and store its rows, or that it failed.

    A failure replaces no answer of the same scale: a report of before keeps its figures.
    """
    began = now().isoformat(timespec="seconds")
    given = dataclasses.asdict(scale)
    answer = Answer(question, began, commit(), given, machine(), versions())
    # Figures of the smallest scale say nothing, however busy or slow the machine is.
    probe, reads = (0.0, 0) if scale.name == "smoke" else (PROBE_SECONDS, PROBED_READS)
    before = busy_cores(probe), random_read_ns(reads)
    start = time.perf_counter()
    answer.error = "it was interrupted"
    try:
        yield answer
        answer.error = ""
    except Exception as error:
        kind = "" if isinstance(error, NotInstalledError) else f"{type(error).__name__}: "
        answer.error = f"{kind}{error}"
        raise
    finally:
        answer.seconds = time.perf_counter() - start
        after = busy_cores(probe), random_read_ns(reads)
        answer.busy, answer.read_ns = zip(before, after, strict=True)
        there = read(folder).get(question)
        if not answer.error or there is None or there.error or there.scale["name"] != scale.name:
            write(answer, folder)


def write(answer: Answer, folder: Path) -> None:
    """Store an answer in the place of that of before."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{answer.question}.unfinished"
    text = json.dumps(rounded(dataclasses.asdict(answer)), indent=1, ensure_ascii=False)
    # Lists of numbers take a line each, not one a number.
    text = re.sub(r"\[[\s\d.,e+-]*\]", lambda found: " ".join(found[0].split()), text)
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(folder / f"{answer.question}.json")


def rounded(value: Any) -> Any:
    """The same with six digits of each float."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def read(folder: Path) -> dict[str, Answer]:
    """All answers of a folder.

    Raises
    ------
    ValueError
        If a file is none.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            answer = Answer(**{**given, "rows": [row_of(row) for row in given["rows"]]})
            if answer.question != path.stem or answer.scale["name"] not in SCALES:
                raise ValueError(f"the question is {answer.question}")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no answer of this version's `python -m bench` "
                f"({type(error).__name__}: {error}): remove it, and ask again"
            ) from error
        found[answer.question] = answer
    return found


def row_of(stored: dict[str, Any]) -> Row:
    """A row from JSON."""
    ratio = stored["ratio"]
    return Row(
        **{
            **stored,
            "figure": Spread(**stored["figure"]),
            "ratio": None if ratio is None else Spread(**ratio),
        }
    )


def now() -> datetime.datetime:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def machine() -> dict[str, Any]:
    """What runs."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


@cache
def versions() -> dict[str, str]:
    """Versions of Python, Java and of the packages that are installed."""
    found = {"python": platform.python_version()}
    if java := said([shutil.which("java") or "java", "-version"]):
        found["java"] = java.split('"')[1] if '"' in java else java.splitlines()[0]
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str:
    """The commit that is measured, and whether the code differs from it."""
    revision = said(["git", "rev-parse", "--short", "HEAD"])
    changed = said(["git", "status", "--porcelain", "--", "pystate", "csrc", "setup.py"])
    return revision.strip() + (" with changes" if changed.strip() else "")


def said(command: list[str]) -> str:
    """What a command prints; nothing if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def busy_cores(seconds: float) -> float:
    """The share of all cores that is in use while this process sleeps."""
    before = _processor_ticks()
    time.sleep(seconds)
    after = _processor_ticks()
    idle, every = after[0] - before[0], after[1] - before[1]
    return 1 - idle / every if every else 0.0


def _processor_ticks() -> tuple[int, int]:
    """Ticks in which a core had nothing to do, and all ticks."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0, 0
    ticks = [int(field) for field in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def random_read_ns(reads: int) -> float:
    """How long a random read from memory takes, ns, with as many under way as a core allows.

    A table of many keys does little else, and neighbours on a shared machine change it by a factor
    of three, which the share of busy cores does not show.
    """
    if not reads:
        return 0.0
    # Written, for untouched pages are all the same one.
    memory = np.ones(PROBED_BYTES, np.uint8)
    places = np.random.default_rng(1).integers(0, PROBED_BYTES, reads)
    start = time.perf_counter()
    memory.take(places)
    return (time.perf_counter() - start) / reads * 1e9


def cpu_name() -> str:
    """The processor's model and number of cores."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        info = ""
    models = [line.split(":", 1)[1] for line in info.splitlines() if line.startswith("model name")]
    model = models[0].strip() if models else platform.machine()
    return f"{model}, {os.cpu_count()} cores"
