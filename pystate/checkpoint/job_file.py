"""``job.json``: the identity of a checkpoint, which does not depend on its epochs.

Thread safety: `JobFile` is immutable; only the owner of a checkpoint replaces the file.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from pystate.checkpoint.epoch_log import HISTORY
from pystate.checkpoint.metadata import Fields, decode_document, encode_document
from pystate.checkpoint.parts import MANIFESTS
from pystate.checkpoint.refs import (
    WITH_KINDS,
    OperatorState,
    Schema,
    decode_defaults,
    decode_schema,
    decode_states,
    decode_ttls,
    encode_ttls,
    state_epoch,
)
from pystate.checkpoint.run_keys import RUNS
from pystate.checkpoint.storage import CheckpointStorage, find_bytes
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    InvalidArgumentError,
    SchemaError,
    UnclaimedStateError,
)
from pystate.state.declaration import Defaults, Ttls, file_name, stored_parts
from pystate.state.evolution import refusal, stored_change
from pystate.state.identity import other_meaning, shown_as, without_kind
from pystate.state.kinds import declared_as, stored_state
from pystate.state.value import ValueState
from pystate.types.keys import MAX_PARALLELISM

#: Version 2 spells states as manifests from format 6 on do. Version 3 has the defaults of states,
#: and version 4 their times to live.
_FORMAT_VERSION = 4
JOB_FILE = "job.json"
#: What makes a folder a savepoint: see `pystate.checkpoint.savepoint`.
SAVEPOINT_FILE = "savepoint.json"
#: In a checkpoint that begins with a savepoint: with which.
RESTORED_FILE = "restored.json"
#: In a checkpoint that is being repaired, or whose repair was interrupted.
REPAIR_FILE = "repair.json"
#: What the folder of a query of Spark's own is, and what to do with it.
SPARKS = (
    "is the checkpointLocation of a Spark query, which is no checkpoint of pystate: a job begins "
    "in a folder of its own. To take the query's state over, read it by Spark's data source "
    "statestore, write it by write_state as a savepoint, and begin with that, "
    "Job(..., restore=...): docs/from-spark.md shows how"
)


@dataclass(frozen=True)
class OperatorEntry:
    """An operator that has been declared at least once."""

    uid: str
    key_schema: Schema
    state_schema: Schema
    defaults: Defaults = ()
    ttls: Ttls = ()

    @classmethod
    def of(cls, operator: OperatorState) -> OperatorEntry:
        """The entry of an operator as a manifest has it."""
        schemas = operator.key_schema, operator.state_schema
        return cls(operator.uid, *schemas, operator.defaults, operator.ttls)


@dataclass(frozen=True)
class JobFile:
    """The identity of a checkpoint."""

    name: str
    checkpoint_id: str
    """A uuid made with the checkpoint; copies of the folder share it."""
    max_parallelism: int
    created_ms: int
    library: str
    operators: tuple[OperatorEntry, ...] = field(default=())

    @classmethod
    def new(
        cls, name: str, max_parallelism: int, operators: tuple[OperatorEntry, ...] = ()
    ) -> JobFile:
        """The identity of a checkpoint that is made now, by this library."""
        created_ms = time.time_ns() // 1_000_000
        return cls(name, str(uuid.uuid4()), max_parallelism, created_ms, library(), operators)

    def application(self, storage: CheckpointStorage) -> bytes:
        """32 bytes that distinguish the shared tables of the checkpoint at a place from others'.

        A copy of a checkpoint has the same id, and may be used beside it.
        """
        return hashlib.sha256(f"{self.checkpoint_id}\0{storage.uri}".encode()).digest()

    def operator(self, uid: str) -> OperatorEntry | None:
        """Find the entry of that uid."""
        return self._entries_by_uid.get(uid)

    @cached_property
    def _entries_by_uid(self) -> dict[str, OperatorEntry]:
        return {entry.uid: entry for entry in self.operators}

    def with_operators(self, entries: tuple[OperatorEntry, ...]) -> JobFile:
        """Return a copy in which these operators are added or replaced; self if nothing changes."""
        merged = {entry.uid: entry for entry in (*self.operators, *entries)}
        operators = tuple(merged[uid] for uid in sorted(merged))
        return self if operators == self.operators else replace(self, operators=operators)

    def save(self, storage: CheckpointStorage) -> None:
        """Replace the file atomically."""
        storage.replace(JOB_FILE, self._encode())

    def create(self, storage: CheckpointStorage) -> bool:
        """Write the file unless there is one; whether there was none."""
        try:
            storage.publish(JOB_FILE, self._encode())
        except AlreadyPublishedError:
            return False
        return True

    def _encode(self) -> bytes:
        return encode_document(
            "job",
            _FORMAT_VERSION,
            {
                "name": self.name,
                "checkpoint_id": self.checkpoint_id,
                "max_parallelism": self.max_parallelism,
                "created_ms": self.created_ms,
                "library": self.library,
                "operators": [
                    {**vars(e), "defaults": dict(e.defaults), "ttls": encode_ttls(e.ttls)}
                    for e in self.operators
                ],
            },
        )

    @classmethod
    def decode(cls, data: bytes, path: str = JOB_FILE) -> JobFile:
        """Verify and parse; `CorruptFileError` or `NewerFormatError` as for a manifest."""
        fields = decode_document("job", _FORMAT_VERSION, data, path)
        job = cls(
            name=fields.text("name"),
            checkpoint_id=fields.text("checkpoint_id"),
            max_parallelism=fields.integer("max_parallelism", least=1, most=MAX_PARALLELISM),
            created_ms=fields.integer("created_ms"),
            library=fields.text("library"),
            operators=tuple(
                _decode_entry(item, path, fields.version) for item in fields.items("operators")
            ),
        )
        fields.finish()
        return job


def read_job(storage: CheckpointStorage) -> JobFile | None:
    """Read a checkpoint's identity; None if there is no checkpoint."""
    data = find_bytes(storage, JOB_FILE)
    return None if data is None else JobFile.decode(data)


def has_epochs(storage: CheckpointStorage) -> bool:
    """Whether there are files of epochs, also where ``job.json`` is lost."""
    if any(storage.list(folder) for folder in (MANIFESTS, HISTORY, RUNS)):
        return True
    return any(state_epoch(entry.path) is not None for entry in storage.list("state"))


def open_job(
    storage: CheckpointStorage,
    name: str,
    parallelism: int,
    max_parallelism: int | None,
    fence: Callable[[], None] = lambda: None,
) -> JobFile:
    """Read a checkpoint's identity, or make it if no epoch was published.

    Without `max_parallelism` the stored number counts, or one that suits `parallelism`. `fence`
    makes sure that no other driver publishes any more, and is called before an identity is replaced
    that a start has left which published nothing. `CheckpointError` if the file is lost: the
    checkpoint has epochs, but their job is not known.
    """
    if not name:
        raise InvalidArgumentError("a job needs a name")
    if parallelism < 1:
        raise InvalidArgumentError(f"parallelism {parallelism} is not positive")
    derived = default_max_parallelism(parallelism)
    wanted = derived if max_parallelism is None else max_parallelism
    if not 1 <= wanted <= MAX_PARALLELISM:
        raise InvalidArgumentError(
            f"max_parallelism {wanted} is not between 1 and {MAX_PARALLELISM}"
        )
    job = _stored_job(storage)
    if job is None:
        refuse_spark(storage)
        check_parallelism(storage, parallelism, wanted)
        job = JobFile.new(name, wanted)
        if job.create(storage):
            return job
        job = JobFile.decode(storage.read_bytes(JOB_FILE), JOB_FILE)
    if (job.name, job.max_parallelism) != (name, wanted) and _published_nothing(storage, job):
        refuse_spark(storage)
        check_parallelism(storage, parallelism, wanted)
        fence()
        if _published_nothing(storage, job):
            job = replace(job, name=name, max_parallelism=wanted, checkpoint_id=str(uuid.uuid4()))
            job.save(storage)
    if job.name != name:
        raise InvalidArgumentError(
            f"checkpoint {storage.uri} belongs to the job {job.name!r}, not {name!r}"
        )
    if max_parallelism is not None and max_parallelism != job.max_parallelism:
        raise InvalidArgumentError(
            f"checkpoint {storage.uri} was made with max_parallelism={job.max_parallelism}, not "
            f"{max_parallelism}: keys are placed by it; leave the argument out to "
            "use the stored one, or multiply it by pystate.rescale, which writes a savepoint"
        )
    check_parallelism(storage, parallelism, job.max_parallelism)
    return job


def _stored_job(storage: CheckpointStorage) -> JobFile | None:
    """The identity of a checkpoint in which a job can run; None where there is none yet."""
    if storage.exists(SAVEPOINT_FILE):
        raise InvalidArgumentError(
            f"{storage.uri} is a savepoint, which no job changes: begin with it in a checkpoint of "
            "the job's own, by Job(..., restore=...)"
        )
    if storage.exists(REPAIR_FILE):
        raise CheckpointError(
            f"checkpoint {storage.uri} is being repaired, or its repair was interrupted: run "
            "`pystate repair` once more, then start the job"
        )
    job = read_job(storage)
    if job is not None:
        return job
    if storage.exists(RESTORED_FILE):
        raise CheckpointError(
            f"checkpoint {storage.uri}: a job began to restore a savepoint here, and did not end: "
            "start it again with the same restore, or remove the folder"
        )
    if has_epochs(storage):
        # It is not lost if another driver has made the file and an epoch meanwhile.
        job = read_job(storage)
        if job is None:
            raise CheckpointError(
                f"checkpoint {storage.uri} has epochs, but {JOB_FILE}, which says whose they are "
                "and which tables belong to them, is lost: bring the file back from a copy, let "
                "`pystate repair --job NAME` make it anew, or use another checkpoint folder"
            )
    return job


def _published_nothing(storage: CheckpointStorage, job: JobFile) -> bool:
    """Whether a checkpoint has no epoch, of its own or of a savepoint that it begins with.

    Manifests that are lost have left traces: see `pystate.checkpoint.traces`.
    """
    if job.operators or storage.exists(RESTORED_FILE):
        return False
    if any(storage.list(folder) for folder in (MANIFESTS, HISTORY, RUNS)):
        return False
    return all((state_epoch(entry.path) or 1) == 1 for entry in storage.list("state"))


def refuse_spark(storage: CheckpointStorage) -> None:
    """Refuse the folder in which Spark keeps the checkpoint of a query of its own."""
    if is_sparks(storage):
        raise InvalidArgumentError(f"{storage.uri} {SPARKS}")


def is_sparks(storage: CheckpointStorage) -> bool:
    """Whether a folder is the ``checkpointLocation`` of a query of Spark's own."""
    try:
        content = json.loads(storage.read_bytes("metadata"))
    except FileNotFoundError:
        return bool(storage.list("offsets") and storage.list("commits"))
    except (ValueError, CheckpointError):
        return False
    return isinstance(content, dict) and "id" in content


@cache
def library() -> str:
    """Return the library's name and version, as files record it."""
    try:
        return f"pystate {importlib.metadata.version('pystate-spark')}"
    except importlib.metadata.PackageNotFoundError:
        return "pystate (not installed)"


def default_max_parallelism(parallelism: int) -> int:
    """Return Flink's default: 1.5 times `parallelism` as a power of two, within 128 to 32768."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), 128), MAX_PARALLELISM)


def check_schemas(
    uid: str,
    stored: tuple[Schema, Schema],
    declared: tuple[Schema, Schema],
    *,
    allow_unclaimed_state: bool,
) -> tuple[str, ...]:
    """Compare an operator's stored (key, state) schemas with its declaration.

    A state is known by its name in files, which `OperatorSpec.continuing` has given it. Returned
    are the names of states that are stored but not declared, if that is allowed; otherwise they are
    an `UnclaimedStateError`. `SchemaError` if the key has another type, or a state one that does
    not hold all stored values, or a field seems to have been renamed.
    """
    if stored[0] != declared[0]:
        raise SchemaError(
            f"operator {uid!r}: its state is keyed by {_columns(stored[0])}, the job declares "
            f"{_columns(declared[0])}; the key of stored state changes only by an offline rewrite: "
            "read it by ps.read_state, change the table, write it by ps.write_state as a "
            "savepoint, and begin with that; or use another uid, which begins without state"
        )
    old = {file_name(*pair): pair for pair in stored[1]}
    new = {file_name(*pair): pair for pair in declared[1]}
    for each in (each for each in new if each in old):
        (former, before), (name, after) = old[each], new[each]
        if before == after:
            continue
        stored_state(uid, former, before)  # a later version's is named
        change = stored_change(before, after)
        wrong = refusal(change, allow_unclaimed_state)
        if wrong:
            was = "" if former == name else f", previously {former!r}"
            mine, theirs = _spellings(before, after)
            raise SchemaError(
                f"operator {uid!r}, state {name!r}{was}: stored as {mine}, declared as {theirs}: "
                f"{wrong}"
            )
    unclaimed = tuple(old[each] for each in old if each not in new)
    if unclaimed and not allow_unclaimed_state:
        added = [new[each] for each in new if each not in old]
        raise UnclaimedStateError(
            f"operator {uid!r}: the checkpoint holds state that no declaration claims: "
            f"{', '.join(name for name, _ in unclaimed)}; {_advice(unclaimed, added)}"
        )
    return tuple(name for name, _ in unclaimed)


def _spellings(before: str, after: str) -> tuple[str, str]:
    """Two spellings for people, with the kind of a value where that is what differs."""
    texts = [shown_as(before), shown_as(after)]
    if other_meaning(before, after) is not None:
        kinds = [type(declared_as(stored)) for stored in (before, after)]
        texts = [
            f"ValueState({text!r})" if kind is ValueState else text
            for text, kind in zip(texts, kinds, strict=True)
        ]
    return texts[0], texts[1]


def _advice(unclaimed: Schema, added: Sequence[tuple[str, str]]) -> str:
    """What to do about stored states that are not declared."""
    kept = cache(lambda before, after: not stored_change(before, after).types.refused)
    alike: dict[str, dict[str, str]] = {}
    for name, after in added:
        alike.setdefault(without_kind(after), {})[name] = stored_parts(after)[1]
    pairs = []
    for former, before in unclaimed:
        left, spelled = alike.get(without_kind(before), {}), stored_parts(before)[1]
        match = next((name for name, after in left.items() if kept(spelled, after)), None)
        if match is not None:
            pairs.append((former, match))
            del left[match]
    if not pairs:
        return (
            "declare it, with previously= and the stored name where it has another name now; or "
            "pass allow_unclaimed_state=True to drop it"
        )
    shown = ", ".join(f"{former} -> {name}" for former, name in pairs)
    former, name = pairs[0]
    return (
        f"this looks like a rename: {shown} (same kind and type): declare {name!r} with "
        f"previously={former!r}, and it keeps its state; or pass allow_unclaimed_state=True to "
        "drop what is stored"
    )


def _columns(schema: Schema) -> str:
    return "(" + ", ".join(f"{name} {ddl}" for name, ddl in schema) + ")"


def check_parallelism(storage: CheckpointStorage, parallelism: int, max_parallelism: int) -> None:
    """Raise `InvalidArgumentError` if a checkpoint has fewer key groups than `parallelism`."""
    if parallelism > max_parallelism:
        raise InvalidArgumentError(
            f"parallelism {parallelism} is more than the {max_parallelism} key groups "
            f"(max_parallelism) of checkpoint {storage.uri}"
        )


def _decode_entry(content: object, path: str, version: int) -> OperatorEntry:
    fields = Fields(content, path)
    entry = OperatorEntry(
        uid=fields.text("uid"),
        key_schema=decode_schema(fields.items("key_schema"), path),
        state_schema=decode_states(
            fields.items("state_schema"), path, 1 if version < 2 else WITH_KINDS
        ),
        defaults=decode_defaults(fields.mapping("defaults"), path) if version >= 3 else (),
        ttls=decode_ttls(fields.mapping("ttls"), path) if version >= 4 else (),
    )
    fields.finish()
    return entry
