"""Results as JSON: a file for each run, which names its machine, versions, scale and load."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import time
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import SCALES, Row, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Scale

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("pystate-spark", "pyspark", "numpy", "pyarrow", "pandas", "duckdb", "lmdb", "rocksdict")
"""Packages whose versions a run notes."""


@dataclasses.dataclass
class Answer:
    """The rows of a question, when and beside what load it was asked, and why it failed."""

    question: str
    time: str
    load: tuple[float, float, float]
    rows: list[Row] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    load_after: tuple[float, float, float] = (0.0, 0.0, 0.0)
    error: str = ""


class Run:
    """A run on this machine, whose file is complete after each question.

    Parameters
    ----------
    scale : Scale
        How much it does.
    folder : Path
        Where its file goes.
    """

    def __init__(self, scale: Scale, folder: Path) -> None:
        began = now()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{began:%Y%m%dT%H%M%SZ}-{os.getpid()}.json"
        self.answers: list[Answer] = []
        self._about = {
            "time": began.isoformat(timespec="seconds"),
            "scale": dataclasses.asdict(scale),
            "machine": machine(),
            "versions": versions(),
        }

    @contextmanager
    def asked(self, question: str) -> Iterator[Answer]:
        """Note a question's time and load, and store its rows, or that it failed."""
        answer = Answer(question, now().isoformat(timespec="seconds"), os.getloadavg())
        began = time.perf_counter()
        try:
            yield answer
        except Exception as error:
            answer.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            answer.seconds = time.perf_counter() - began
            answer.load_after = os.getloadavg()
            self.answers.append(answer)
            self._save()

    def _save(self) -> None:
        run = {**self._about, "answers": [dataclasses.asdict(one) for one in self.answers]}
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(run, indent=1), encoding="utf-8")
        unfinished.replace(self.path)


@dataclasses.dataclass(frozen=True)
class Found:
    """A stored answer with what its run says of itself."""

    answer: Answer
    file: str
    scale: str
    machine: dict[str, Any]
    versions: dict[str, str]


def newest(folder: Path) -> dict[str, Found]:
    """The answer to each question: of the largest scale, and there the newest that succeeded.

    Raises
    ------
    ValueError
        If a file is not a run's.
    """
    order = list(SCALES)
    found: dict[str, tuple[tuple[bool, int, str], Found]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
            for given in run["answers"]:
                answer = Answer(**{**given, "rows": [row_of(row) for row in given["rows"]]})
                scale = run["scale"]["name"]
                one = Found(answer, path.name, scale, run["machine"], run["versions"])
                rank = (not answer.error, order.index(scale), answer.time)
                if answer.question not in found or rank >= found[answer.question][0]:
                    found[answer.question] = rank, one
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is not a run of this version's `python -m bench` "
                f"({type(error).__name__}: {error}): move it elsewhere, or repeat that run"
            ) from error
    return {question: one for question, (_, one) in found.items()}


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


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """The processor's model and number of cores."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        info = ""
    models = [line.split(":", 1)[1] for line in info.splitlines() if line.startswith("model name")]
    model = models[0].strip() if models else platform.machine()
    return f"{model}, {os.cpu_count()} cores"
