"""The command that prints the dashboard for Grafana: ``dashboard``."""

from __future__ import annotations

from importlib.resources import files

import typer


def dashboard() -> None:
    """Print a dashboard for Grafana.

    It shows the metrics of jobs, as `serve`, `Job(metrics=...)` and `CheckpointMetrics` have them.

    Import the JSON document in Grafana, and choose the Prometheus that scrapes them.

    Example: pystate dashboard > pystate.json
    """
    document = files("pystate.maintenance") / "dashboard.json"
    typer.echo(document.read_text(encoding="utf-8"), nl=False)
