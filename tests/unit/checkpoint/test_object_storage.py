"""What only object stores do: requests that fail, and stores that are none of ours."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator

import pytest

from pystate.checkpoint import object_storage
from pystate.checkpoint.locations import local_only, open_storage
from pystate.checkpoint.object_storage import ObjectReader, ObjectStorage
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    InvalidArgumentError,
    MissingPackageError,
)
from tests import object_server
from tests.drawn import THOROUGH


@pytest.fixture
def storage(s3_url: str) -> ObjectStorage:
    return ObjectStorage(s3_url)


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody repeats requests."""
    monkeypatch.setattr(object_storage, "_RETRIES", 0)
    monkeypatch.setattr("pystate.checkpoint.object_storage._PATIENCE_S", 0.0)
    object_storage._client_of.cache_clear()
    yield
    object_storage._client_of.cache_clear()


def failing(location: str) -> str:
    """What every kind of access says; it is the same."""
    storage, said = open_storage(location), set()
    for act in (
        lambda: storage.publish("a", b"secret content"),
        lambda: storage.replace("a", b""),
        lambda: storage.read_bytes("a"),
        lambda: storage.list(""),
    ):
        with pytest.raises(CheckpointError) as caught:
            act()
        error = caught.value
        assert type(error) is CheckpointError
        assert error.__cause__ is None and error.__suppress_context__
        text = str(error)
        assert "\n" not in text and "not-so-secret" not in text and "?" not in text
        assert text.startswith(("could not write ", "could not read ", "could not list "))
        assert location in text
        said.add(text.partition(": ")[2])
    [text] = said
    return text


# ---- answers that are lost -----------------------------------------------------------------------


def test_a_lost_answer_is_no_other_writer(storage: ObjectStorage) -> None:
    storage.publish("lost-answer", b"mine")
    with pytest.raises(AlreadyPublishedError):
        storage.publish("lost-answer", b"another's")
    with storage.create("f/lost-answer") as out:
        out.write(b"mine")
    storage.make_folder("m")
    assert storage.mark("m/lost-answer", b"mine") is None
    assert storage.mark("m/lost-answer", b"another's") == b"mine"


@pytest.mark.usefixtures("one_try")
def test_who_gets_an_error_looks_whether_it_was_written(storage: ObjectStorage) -> None:
    storage.publish("lost-answer", b"mine")
    assert storage.read_bytes("lost-answer") == b"mine"


# ---- connections that fail -----------------------------------------------------------------------


@pytest.fixture
def faults(
    object_store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[object_server.Faults]:
    monkeypatch.setattr("pystate.checkpoint.object_storage._FIRST_PAUSE_S", 0.01)
    with object_server.faults(object_store["AWS_ENDPOINT_URL"]) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


def written(storage: ObjectStorage, path: str) -> None:
    with storage.create(path) as out:
        out.write(bytes(range(200)))


#: Operations by name: the requests that each is made of, and what shows that it was done once.
OPERATIONS: dict[str, tuple[tuple[str, ...], Callable[[ObjectStorage], object], object]] = {
    "publish": (("PUT",), lambda s: (s.publish("n", b"1"), s.read_bytes("n"))[1], b"1"),
    "replace": (("PUT",), lambda s: (s.replace("old", b"1"), s.read_bytes("old"))[1], b"1"),
    "create": (("PUT",), lambda s: (written(s, "n"), s.size_bytes("n"))[1], 200),
    "mark": (("PUT", "HEAD"), lambda s: s.mark("folder/m", b"1"), None),
    "touch": (("GET", "PUT"), lambda s: s.touch("old"), True),
    "read_bytes": (("GET",), lambda s: s.read_bytes("old"), b"old"),
    "open_read": (("HEAD", "GET"), lambda s: s.open_read("old").read(), b"old"),
    "list": (("GET",), lambda s: [e.path for e in s.list("folder/x")], ["folder/x/1"]),
    "exists": (("HEAD",), lambda s: s.exists("old"), True),
    "delete": (("HEAD", "POST"), lambda s: (s.delete("old"), s.exists("old")), (True, False)),
    "remove_folder": (
        ("GET", "POST"),
        lambda s: (s.remove_folder("folder/x"), s.list("folder/x"))[1],
        [],
    ),
    "share": (
        ("POST", "PUT"),
        lambda s: (s.share("n", s, "old"), s.read_bytes("n")),
        (True, b"old"),
    ),
    "create in pieces": (
        ("POST", "PUT"),
        lambda s: (written(s, "large/n"), s.read_bytes("large/n"))[1],
        bytes(range(200)),
    ),
}


#: What a store may have done before its answer was lost differs for these.
UNSURE = ("publish", "mark", "delete", "share")


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        pytest.param(
            operation,
            fault,
            marks=[] if fault == "reset before" or operation in UNSURE else [pytest.mark.slow],
        )
        for operation in OPERATIONS
        for fault in ("reset before", "reset after", "cut")
    ],
)
def test_a_failed_connection_is_no_failure(
    faults: object_server.Faults,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    fault: str,
) -> None:
    """Whichever request of an operation it hits, and whatever the store has done by then."""
    methods, act, expected = OPERATIONS[operation]
    if operation == "create in pieces":
        monkeypatch.setattr("pystate.checkpoint.object_storage._ONE_PUT", 8)
    for method in methods:
        for skipped in range(3 if THOROUGH else 2):
            storage = ObjectStorage(f"{s3_url}/{method}{skipped}")
            storage.publish("warm", b"")
            storage.replace("old", b"old")
            storage.make_folder("folder")
            storage.publish("folder/x/1", b"1")
            faults.next(method, fault, skipped)
            assert act(storage) == expected
            if not faults.reached():
                assert skipped, f"{operation} sends no {method}"
                break


def test_another_writer_is_told_from_a_lost_answer(
    faults: object_server.Faults, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("other", b"old")
    storage.publish("copied", b"not old")
    faults.next("PUT", "reset before")
    with pytest.raises(AlreadyPublishedError):
        storage.publish("other", b"old")
    faults.next("POST", "cut")
    with pytest.raises(AlreadyPublishedError):
        storage.share("copied", storage, "other")
    monkeypatch.setattr("pystate.checkpoint.object_storage._ONE_PUT", 8)
    faults.next("POST", "cut")
    with pytest.raises(AlreadyPublishedError):
        written(storage, "copied")
    assert (storage.read_bytes("other"), storage.read_bytes("copied")) == (b"old", b"not old")
    assert storage.list("", temporary=True) == []


# ---- stores and access ---------------------------------------------------------------------------


@pytest.mark.usefixtures("object_store")
def test_a_store_without_conditions_is_refused() -> None:
    storage = ObjectStorage(f"s3://{object_server.CARELESS}/ck")
    with pytest.raises(CheckpointError, match="s3://careless replaces an object"):
        storage.publish("owners/1", b"x")


@pytest.mark.usefixtures("object_store")
def test_a_bucket_that_is_not_there() -> None:
    text = failing("s3://no-such-bucket/ck")
    assert text == (
        "there is no bucket or container s3://no-such-bucket: create it, or correct the name"
    )


def test_wrong_credentials(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "denied")
    text = failing(s3_url)
    assert text.startswith("access is denied (InvalidAccessKeyId): ")
    assert "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in text


def test_http_has_to_be_allowed(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "AWS_ALLOW_HTTP=true" in failing(s3_url)


@pytest.mark.usefixtures("one_try")
def test_nobody_answers(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    storage = ObjectStorage(s3_url)
    with pytest.raises(CheckpointError, match=r"HTTP error.*; look at the endpoint, the region"):
        storage.publish("a", b"")
    with pytest.raises(CheckpointError, match=f"could not look at {s3_url}/a"):
        storage.exists("a")
    with pytest.raises(CheckpointError), storage.create("a") as out:
        out.write(b"")
    storage.remove_folder("f")  # it is left to orphan collection


@pytest.mark.parametrize(
    ("url", "extra"), [("s3://b/c", "s3"), ("gs://b/c", "gcs"), ("abfss://c@a/b", "azure")]
)
def test_a_missing_package(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError, match=rf"pip install '.*\[{extra}\]' into"):
        open_storage(url)


def test_a_forked_process_says_what_is_wrong(storage: ObjectStorage) -> None:
    storage.publish("a", b"1")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            storage.read_bytes("a")
        except CheckpointError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        assert "start it by spawn, not by fork" in pipe.read()
    os.waitpid(child, 0)


def test_what_has_to_be_local() -> None:
    assert local_only("file:///data/x", "out") == "/data/x" == local_only("/data/x", "out")
    with pytest.raises(InvalidArgumentError, match="out is a folder of a local or shared"):
        local_only("s3://bucket/x", "out")


def test_a_file_that_is_too_large(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystate.checkpoint.object_storage._ONE_PUT", 8)
    monkeypatch.setattr("pystate.checkpoint.object_storage._LARGEST", 16)
    message = r"at most 16: use a higher parallelism"
    with pytest.raises(CheckpointError, match=message), storage.create("x") as out:
        out.write(bytes(17))
    assert storage.list("") == storage.list("", temporary=True) == []


def test_what_stands_for_folders_elsewhere_is_no_file(storage: ObjectStorage) -> None:
    import obstore

    obstore.put(storage._client, storage._key("x").rpartition("/")[0] + "/", b"")
    storage.publish("a", b"")
    assert [entry.path for entry in storage.list("")] == ["a"]


# ---- reading -------------------------------------------------------------------------------------


class Fetched:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, end: int) -> memoryview:
        self.asked.append((start, end))
        return memoryview(self.data)[start:end]


def test_a_small_file_is_fetched_once() -> None:
    fetch = Fetched(bytes(range(200)))
    reader = ObjectReader("x", 200, fetch)
    reader.seek(-8, os.SEEK_END)
    assert reader.read(8) == bytes(range(192, 200))
    reader.seek(0)
    assert reader.read() == fetch.data
    assert fetch.asked == [(0, 200)]


def test_a_scan_takes_few_requests_and_a_jump_fetches_little() -> None:
    mega = 1 << 20
    fetch = Fetched(bytes(20 * mega))
    reader = ObjectReader("x", len(fetch.data), fetch)
    while reader.read(100_000):
        pass
    sizes = [(end - start) // mega for start, end in fetch.asked]
    assert sizes[:3] == [1, 2, 4] and max(sizes) == 4
    fetch.asked.clear()
    reader.seek(5 * mega)
    reader.read(10)
    assert fetch.asked == [(5 * mega, 6 * mega)]


def test_too_few_bytes_are_an_error() -> None:
    reader = ObjectReader("x", 10, lambda start, end: memoryview(b"12"))
    with pytest.raises(OSError, match="too few bytes"):
        reader.read(5)
    with pytest.raises(ValueError, match="negative"):
        reader.seek(-11, os.SEEK_END)
