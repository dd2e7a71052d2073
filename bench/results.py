"""Answers in one file: a line of JSON for each question, with its machine, versions and commit."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
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
    scale: str
    machine: dict[str, Any]
    versions: dict[str, str]
    busy: tuple[float, float] = (0.0, 0.0)
    read_ns: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0
    error: str = ""
    rows: list[Row] = dataclasses.field(default_factory=list)


@contextmanager
def asked(question: str, scale: Scale, path: Path) -> Iterator[Answer]:
    """Note the conditions of a question, and store its rows, or that it failed.

    A failure replaces no answer of the same scale: a report of before keeps its figures.
    """
    began = now().isoformat(timespec="seconds")
    answer = Answer(question, began, commit(), scale.name, machine(), versions())
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
        there = read(path).get(question)
        if not answer.error or there is None or there.error or there.scale != scale.name:
            write(answer, path)


def write(answer: Answer, path: Path) -> None:
    """Store an answer in the place of that of before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    answers = {**read(path), answer.question: answer}
    lines = [json.dumps(stored(answers[name]), ensure_ascii=False) for name in sorted(answers)]
    unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unfinished.replace(path)


def stored(value: Any) -> Any:
    """What is written: of a row all but what it has not, of a spread three figures, six digits."""
    if isinstance(value, Answer):
        return {name: stored(one) for name, one in vars(value).items()}
    if isinstance(value, Row):
        given = {name: one for name, one in vars(value).items() if one not in ("", None)}
        return stored({name: one for name, one in given.items() if name != "question"})
    if isinstance(value, Spread):
        return stored([value.median, value.low, value.high])
    if isinstance(value, dict):
        return {key: stored(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [stored(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def read(path: Path) -> dict[str, Answer]:
    """All answers of a file, of which there may be none; a line that is none is an error."""
    found: dict[str, Answer] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            given = json.loads(line)
            rows = [row_of(given["question"], row) for row in given["rows"]]
            answer = Answer(**{**given, "rows": rows})
            if answer.scale not in SCALES:
                raise ValueError(f"the scale is {answer.scale}")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number}, is no answer of this version's `python -m bench` "
                f"({type(error).__name__}: {error}): remove it, and ask again"
            ) from error
        found[answer.question] = answer
    return found


def row_of(question: str, given: dict[str, Any]) -> Row:
    """A row from JSON."""
    spreads = {name: Spread(*one) for name, one in given.items() if name in ("figure", "ratio")}
    return Row(question, **{**given, **spreads})


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
