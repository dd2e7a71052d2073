"""Find the connected components of a graph that grows, by messages that go round a loop.

Each node keeps a label, the smallest name that it has heard of, and its neighbours. A node whose
label becomes smaller sends it to its neighbours: these messages are fed back (``job.feedback``),
and the next epoch delivers them. When no message is in flight, all nodes of a component have its
smallest name as their label. Epochs run until then: ``job.run_until_empty``.

The edges come in several parts. A new edge that joins two components sets off messages in one of
them only; what was found before stays as it is.

Without a file the graph is made of real flights. An aircraft that lands at two places on one day
joins them, since a delay at one may reach the other; so the nodes are the aircraft and the places
of each day. A file of your own has an edge per line: two names with white space between them, or
a comment, ``# ...``.

Kill it at any moment and start it again with the same ``--checkpoint``: messages in flight are in
the checkpoint, each exactly once. At the end the components are compared with those that networkx
finds.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.base.installation import extra
from pystate.errors import MissingRequirementError
from pystate.examples._console import message
from pystate.examples._driver import Run, cut, example, parser, positive, published, verified
from pystate.examples._flight_data import load_flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

#: The table of epochs.
COLUMNS = {
    "epoch": "epoch",
    "rows": "rows",
    "messages": "out",
    "in flight": "flight",
    "nodes": "keys",
    "checkpoint": "checkpoint",
    "seconds": "seconds",
}
EDGE = {"a": pa.string(), "b": pa.string()}
DAY_LENGTH = len("2013-01-01")


class Node(ps.KeyedProcessFunction):
    """The label of one node, and its neighbours."""

    label = ps.ValueState("string")
    neighbours = ps.MapState("string", "boolean")

    def process(self, key: str, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[str, str]]:
        """Take an edge, or a neighbour's label; the label to send on goes to neighbours."""
        known = self.label.value()
        label = min(key if known is None else known, row.label or key)
        if row.neighbour is not None and row.neighbour not in self.neighbours:
            self.neighbours.put(row.neighbour, True)
            if label == known:
                yield row.neighbour, label
        if label != known:
            self.label.update(label)
            for neighbour in self.neighbours.keys():  # noqa: SIM118 (a state, not a dict)
                yield neighbour, label


def pipeline(edges: DataFrame, job: Job) -> DataFrame:
    """From one epoch's edges to the labels that it sends."""
    from pyspark.sql import functions as F

    loop = job.feedback("messages", "node string, label string", uid="messages")
    ends = edges.union(edges.select("b", "a")).toDF("node", "neighbour")
    arriving = ends.unionByName(loop.rows(), allowMissingColumns=True)
    nodes = job.key_by(arriving, "node", uid="nodes", order_by="label")
    sent = nodes.process(Node(), schema="node string, label string")
    # Of all labels that are sent to a node only the smallest one matters.
    sent = sent.groupBy("node").agg(F.min("label").alias("label")).localCheckpoint()
    loop.feed(sent)
    return sent


def flight_edges(days: int) -> pa.Table:
    """The aircraft and the places of the first days, each with its day."""
    flights = load_flights()
    edges: dict[tuple[str, str], None] = {}
    seen: dict[str, None] = {}
    names = ("time_hour", "tailnum", "dest", "dep_time")
    for hour, aircraft, place, left in zip(
        *(flights.column(name).to_pylist() for name in names), strict=True
    ):
        day = str(hour)[:DAY_LENGTH]
        seen[day] = None
        if len(seen) > days:
            break
        if aircraft is not None and left is not None:
            edges[f"{day} {aircraft}", f"{day} {place}"] = None
    return pa.table({name: [edge[i] for edge in edges] for i, name in enumerate(EDGE)})


def read_edges(path: str) -> pa.Table:
    """Read a file of edges."""
    lines = Path(path).read_text("utf-8").splitlines()
    edges = [line.split()[:2] for line in lines if not line.startswith("#")]
    edges = [edge for edge in edges if len(edge) == len(EDGE)]
    if not edges:
        raise ValueError(f"{path} has no edge")
    return pa.table({name: [edge[i] for edge in edges] for i, name in enumerate(EDGE)})


def components_of(edges: pa.Table) -> list[set[str]]:
    """Find the components with networkx."""
    try:
        import networkx
    except ImportError:
        raise MissingRequirementError(
            "the components are compared with those of networkx, of the extra 'demo' of "
            f"pystate-spark, which is not installed: pip install networkx, or {extra('demo')}"
        ) from None
    graph = networkx.Graph(zip(*(edges.column(name).to_pylist() for name in EDGE), strict=True))
    return list(networkx.connected_components(graph))


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    options = parser("components", __doc__, epochs=None)
    options.add_argument("path", nargs="?", help="a file of edges (default: real flights)")
    options.add_argument(
        "--days", type=positive, default=2, metavar="N", help="days of flights (default: 2)"
    )
    options.add_argument(
        "--parts", type=positive, default=3, metavar="N", help="parts of the edges (default: 3)"
    )
    return example(options.parse_args(arguments), "components", _run, columns=COLUMNS)


def _run(run: Run) -> int:
    options = run.options
    edges = read_edges(options.path) if options.path else flight_edges(options.days)
    components = components_of(edges)
    parts = cut(edges, options.parts)
    message(f"{len(edges):,} edges of {options.path or 'flights'} in {len(parts)} parts")
    with run.session() as session:
        job, sink = run.job(), run.sink("labels")
        rounds = 0
        for number, part in enumerate(run.frames(session, parts)):
            done = job.run_until_empty(
                part, pipeline, run_key=f"part {number}", sink=sink, on_epoch=run.show
            )
            rounds += len(done)
        job.close()
    state = job.read_state("nodes")
    labels = dict(zip(state["node"].to_pylist(), state["label"].to_pylist(), strict=True))
    smallest = {row["node"]: row["label"] for row in published(sink)}
    wanted = {node: min(nodes) for nodes in components for node in nodes}
    first = set(wanted.values())
    if not verified(
        ("the label", labels.items(), wanted.items()),
        # What was sent last to a node; nobody has to tell the smallest one of a component.
        ("the last message", _without(smallest, first), _without(wanted, first)),
    ):
        return 1
    sizes = Counter(map(len, components))
    largest = ", ".join(f"{size:,}" for size in sorted(sizes, reverse=True)[:3])
    message(
        f"verified: {len(wanted):,} nodes in {len(components):,} components, as networkx finds "
        f"them, in {rounds} epochs; the largest ones have {largest} nodes"
    )
    return 0


def _without(labels: dict[str, str], nodes: set[str]) -> Iterator[tuple[str, str]]:
    return ((node, label) for node, label in labels.items() if node not in nodes)


if __name__ == "__main__":
    sys.exit(main())
