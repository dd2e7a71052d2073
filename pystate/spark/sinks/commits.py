"""Finds by name the sinks that commit a manifest's transactions; checks it before it is published.

Thread safety: safe from any thread; the coordinator serialises commits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pystate.base.arguments import nearest
from pystate.checkpoint.manifest import Manifest
from pystate.errors import CheckpointError, FencedError, PystateError, SinkError
from pystate.redaction import logger
from pystate.spark.base.failures import is_stop, stopped_its_query
from pystate.spark.sinks.outputs import OWN, Outputs, is_own
from pystate.spark.sinks.parquet import KIND, commit_parquet
from pystate.spark.sinks.pending_output import publish_files
from pystate.spark.sinks.sink import (
    Sink,
    Transaction,
    as_json,
    failure,
    registered_names,
    registered_sink,
)

_LOG = logger("pystate.spark.sinks.commits")


def commit(transaction: Mapping[str, Any], checkpoint: str | None = None) -> None:
    """Commit a transaction that needs no sink; a second commit changes nothing."""
    kind = transaction.get("kind")
    if kind != KIND:
        raise CheckpointError(
            f"the manifest names a sink transaction of kind {kind!r}, which this version of "
            "pystate does not know"
        )
    commit_parquet(transaction, os.path.join(checkpoint or "", str(transaction["path"])))


class SinkCommitter:
    """Commits the transactions of one job's manifests."""

    def __init__(self, checkpoint: str | None) -> None:
        self._checkpoint = checkpoint
        self._known: dict[str, Sink] = {}
        self._threads = threading.local()

    @contextmanager
    def within(self, outputs: Outputs, check_owner: Callable[[], None]) -> Iterator[None]:
        """Let this thread commit with the sinks of an epoch, and with those known before."""
        self._known.update((sink.name, sink) for sink in outputs.sinks() if is_own(sink))
        self._threads.session, self._threads.check_owner = outputs.session, check_owner
        try:
            yield
        finally:
            self._threads.session = self._threads.check_owner = None

    def check(self, transactions: Sequence[Transaction], epoch: int) -> None:
        """Make sure that transactions can be committed, before a manifest names them."""
        for transaction in transactions:
            as_json(transaction, f"epoch {epoch}: a sink")
            if transaction.get("kind") == OWN:
                name = transaction["name"]
                if self._find(name) is None:
                    raise SinkError(
                        f"epoch {epoch}: rows were staged in a sink {name!r}, and no known "
                        "sink of that name could commit them: a sink must keep its name; nothing "
                        "of the epoch was published"
                    )
            elif transaction.get("kind") != KIND:
                raise SinkError(
                    f"epoch {epoch}: a sink has made a transaction of kind "
                    f"{transaction.get('kind')!r}, which nobody could commit; nothing of the "
                    "epoch was published"
                )

    def __call__(self, manifest: Manifest) -> None:
        """Commit all transactions of a manifest.

        One that fails keeps no other output waiting; its error is raised after the others.
        """
        failed: PystateError | OSError | None = None
        for transaction in manifest.sinks:
            try:
                self._commit(transaction, manifest.epoch)
            except FencedError:
                raise
            except (PystateError, OSError) as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def at_once(self, transactions: Sequence[Transaction], epoch: int) -> None:
        """Commit transactions that no manifest names, and of which there may be more."""
        for transaction in transactions:
            if transaction.get("kind") == KIND:
                publish_files(
                    transaction, os.path.join(self._checkpoint or "", str(transaction["path"]))
                )
            else:
                self._commit(transaction, epoch)

    def give_up(self, manifest: Manifest) -> list[str]:
        """Commit what can be committed, and name what cannot."""
        lost = []
        for transaction in manifest.sinks:
            try:
                self._commit(transaction, manifest.epoch)
            except (CheckpointError, OSError) as error:
                own = transaction.get("kind") == OWN
                lost.append(str(transaction["name"] if own else transaction.get("path")))
                _LOG.warning("the output of epoch %d is given up: %s", manifest.epoch, error)
                sink = self._find(transaction["name"]) if own else None
                if sink is not None:
                    self._abort(sink, manifest)
        return lost

    def _abort(self, sink: Sink, manifest: Manifest) -> None:
        try:
            self._bound(sink).abort(manifest.epoch, manifest.evaluation_id)
        except Exception as error:
            _LOG.warning("sink %r: abort failed: %s", sink.name, error)

    def _find(self, name: str) -> Sink | None:
        return self._known[name] if name in self._known else registered_sink(name)

    def _bound(self, sink: Sink) -> Sink:
        return sink._bound(self._checkpoint, getattr(self._threads, "session", None))

    def _commit(self, transaction: Mapping[str, Any], epoch: int) -> None:
        try:
            if transaction.get("kind") == OWN:
                self._commit_own(transaction, epoch)
            else:
                commit(transaction, self._checkpoint)
        except FencedError:
            raise
        except CheckpointError as error:
            raise SinkError(
                f"{error}; or go on without these rows, for ever, with job.abandon_output({epoch})"
            ) from error

    def _commit_own(self, transaction: Mapping[str, Any], epoch: int) -> None:
        name, kind = str(transaction["name"]), str(transaction["class"])
        sink = self._find(name)
        if sink is None:
            known = sorted({*self._known, *registered_names()})
            listed = f"it has {', '.join(map(repr, known))}" if known else "it has none of a name"
            raise SinkError(
                f"epoch {epoch} is published, and its rows wait in the sink {name!r}, of class "
                f"{kind}, which this process does not have ({listed}{nearest(name, known)}): pass "
                "it as sink=, or to register_sink before the job starts, and it commits them"
            )
        # A delayed driver leaves the commit to its successor, which may be ahead of it.
        check_owner = getattr(self._threads, "check_owner", None)
        if check_owner is not None:
            check_owner()
        try:
            self._bound(sink).commit(epoch, transaction["transaction"])
        except FencedError:
            raise
        except Exception as error:
            if is_stop(error) or stopped_its_query(error):
                raise
            now = f"{type(sink).__module__}.{type(sink).__qualname__}"
            changed = "" if now == kind else f" (staged by {kind}, which is {now} now)"
            what = f"sink {name!r}{changed}: commit"
            then = (
                f"epoch {epoch} is published and its rows wait: put that right and start the job "
                "again, which commits them before anything else"
            )
            if isinstance(error, PystateError):
                raise SinkError(f"{what} failed: {error}; {then}") from error
            raise failure(what, error, then) from error
