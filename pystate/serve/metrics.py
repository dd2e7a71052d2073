"""The route of metrics, for Prometheus.

What is read, and what a scrape costs, says `pystate.maintenance.prometheus`.

Thread safety: functions; what a server collects with is its own.
"""

from __future__ import annotations

import weakref

from pystate.maintenance.prometheus import CheckpointMetrics, exposition
from pystate.serve.operations import Call, Operation, Service, Success

#: Each server's collector, which goes with it.
_collectors: weakref.WeakKeyDictionary[Service, CheckpointMetrics] = weakref.WeakKeyDictionary()


async def _metrics(call: Call) -> None:
    service = call.service
    collector = _collectors.get(service)
    if collector is None:
        places = {name: job.location for name, job in service.jobs.items()}
        collector = _collectors[service] = CheckpointMetrics(places)
    accept = call.headers.get(b"accept", b"").decode("latin-1")
    data, content_type = await service.workers.run(exposition, collector, accept)
    await call.answer(data, content_type)


ROUTES: tuple[Operation, ...] = (
    Operation(
        "GET",
        "/metrics",
        _metrics,
        "metrics",
        "The metrics of all jobs, for Prometheus.",
        Success(
            "Metrics in a format that Prometheus reads: docs/metrics.md has all names.",
            {},
            ("text/plain", "application/openmetrics-text"),
            has_epoch=False,
        ),
    ),
)
