"""No secret in anything that people read: each form that stores and drivers know, in each place."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

import pystate as ps
from pystate.base.arguments import checked_uid, require_no_credentials, shown
from pystate.base.markup import panel
from pystate.checkpoint.locations import open_storage
from pystate.errors import InvalidArgumentError, PystateError
from pystate.redaction import has_credentials, is_secret, logger, redacted, without_secrets
from pystate.spark import Job, ParquetSink, foreach_epoch
from pystate.spark.epochs.runs import checked_run_key
from pystate.spark.sinks.sink import failure
from pystate.state.kinds import declared_as

#: Parts of what is secret; none of their middles may be in a message.
SECRETS = (
    "wJalrXUtnFEMIxK7MDENG",
    "wJalrXUtnFEMI/K7MDENG",
    "wJal/rXUt/nFEMI+K7MDENG",
    "wJalrX@UtnFEMI@K7MDENG",
    "wJalrX%2FUtnFEMI%40K7MDENG",
    "wJalrX:Utn/FEMI:K7MDENG",
    "wJalrX?Utn#FEMI&K7MDENG",
    "/+@%wJalrXUtnFEMIxK7MDENG==",
    "wJalrX Utn\"FEMI'K7MDENG",
    "wJalrX<UtnFEMI`K7MDENG",
    "wJalrX\\UtnFEMI\\K7MDENG",
    "123456/K7MDENG",
)
USERS = (
    "s3://AKIDEXAMPLE:{}@bucket/p",
    "s3a://AKIDEXAMPLE:{}@bucket",
    "s3n://AKIDEXAMPLE:{}@bucket/p",
    "S3://AKIDEXAMPLE:{}@bucket/p",
    "s3://:{}@bucket/p",
    "s3:/AKIDEXAMPLE:{}@bucket/p",
    "s3:AKIDEXAMPLE:{}@bucket/p",
    "gs://me:{}@bucket/p",
    "az://account:{}@container/p",
    "abfs://c:{}@account.dfs.core.windows.net/p",
    "abfss://c:{}@account.dfs.core.windows.net/p",
    "wasb://c:{}@account.blob.core.windows.net/p",
    "wasbs://c:{}@account/out",
    "http://me:{}@host:9000/p",
    "https://me:{}@host/p",
    "file://me:{}@host/p",
    "hdfs://me:{}@namenode:8020/p",
    "postgresql://me:{}@host:5432/db",
)
QUERIES = (
    "s3://bucket/p?AWSAccessKeyId=K7MDENG&Signature=K7MDENG%3D&Expires=1",
    "s3://bucket/p?X-Amz-Credential=K7MDENG/eu&X-Amz-Signature=K7MDENG&X-Amz-Security-Token=K7MDENG",
    "gs://bucket/p?GoogleAccessId=K7MDENG&Signature=K7MDENG",
    "gs://bucket/p?X-Goog-Signature=K7MDENG",
    "https://account.blob.core.windows.net/c/p?sv=2022-11-02&sp=rw&sig=K7MDENG%3D&se=2027",
    "wasbs://c@account/out?sig=K7MDENG",
    "abfss://c@account.dfs.core.windows.net/p?sv=2022-11-02&sig=K7MDENG",
    "https://host/p?token=K7MDENG",
    "https://host/p?a=1&access_token=K7MDENG",
    "file:///p?sig=K7MDENG",
    "s3://bucket/p?X%2DAmz%2DSignature=K7MDENG",
    "s3://bucket/p?secret%5Fkey=K7MDENG",
    "s3://bucket/p?aws_sse_customer_key_base64=K7MDENG",
    "s3://bucket/p?a=1;secret_key=K7MDENG",
    "s3://bucket/p;secret=K7MDENG",
    "s3://bucket/p#secret=K7MDENG",
    "s3://bucket/p?endpoint=http://me:K7MDENG@host",
    "s3://bucket/p?endpoint=http%3A%2F%2Fme%3AK7MDENG%40host&a=1",
    "s3://bucket/http://me:K7MDENG@host",
)
CONNECTIONS = (
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=K7MDENG/+==;EndpointSuffix=core",
    "BlobEndpoint=https://a;SharedAccessSignature=sv=2022&ss=b&sig=K7MDENG%3D",
    "sv=2022-11-02&ss=b&srt=sco&sp=rwd&se=2027&sig=K7MDENG%3D",
    "sig=K7MDENG%3D&ss=b&sv=2022-11-02",
)
LOCATIONS = (*(form.format(secret) for form in USERS for secret in SECRETS), *QUERIES, *CONNECTIONS)

#: Databases, which are no locations, but may be taken for names.
DATABASES = (
    "jdbc:postgresql://me:K7MDENG/x@host/db",
    "jdbc:postgresql://host/db?user=me&password=K7MDENG",
    "jdbc:sqlserver://host:1433;databaseName=d;user=me;password=K7MDENG;encrypt=true",
    "jdbc:oracle:thin:me/K7MDENG@host:1521:d",
    "jdbc:oracle:thin:me/x@K7MDENG@//host:1521/d",
    "host=h user=me password=K7MDENG dbname=d",
    "password=K7MDENG host=h",
)

#: What is in texts and options, and in no location.
TEXTS = (
    *DATABASES,
    "could not connect: host=h user=me password=K7MDENG dbname=d",
    "could not connect: host=h password='a K7MDENG b' dbname=d",
    "Server=h;User Id=me;Password=K7MDENG;",
    "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=K7MDENG=",
    "{'fs.s3a.access.key': 'K7MDENG', 'fs.s3a.secret.key': 'K7MDENG'}",
    "{'key': 'K7MDENG', 'secret': 'K7MDENG', 'n': 1}",
    '{"fs.azure.account.key.a.dfs.core.windows.net": "K7MDENG"}',
    "{'password': \"it's K7MDENG\"}",
    "{'password': b'K7MDENG'}",
    "[('aws_session_token', 'K7MDENG')]",
    "sasl.jaas.config=K7MDENG",
    'PlainLoginModule required username="me" password="K7MDENG";',
    "Options(api_key='K7MDENG', url=None)",
    "{'Authorization': 'Bearer K7MDENG.K7MDENG'}",
    "Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=K7MDENG",
    "<Error><AWSAccessKeyId>AKID</AWSAccessKeyId><SignatureProvided>K7MDENG=</SignatureProvided>",
    "<Credentials><SessionToken>K7MDENG/x</SessionToken></Credentials>",
    "-----BEGIN RSA PRIVATE KEY-----\nK7MDENG\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nK7MDENG\nK7MD",
    # Cut short in front of what would say that there is a secret.
    "s3://AKIDEXAMPLE:K7MDENG",
    "s3://AKIDEXAMPLE:K7MDENG...",
    "{'password': 'K7MDENG",
)
#: Texts that stay as they are.
PLAIN = (
    "could not read s3://bucket/a@b/c:d=e/epoch=1: access is denied",
    "abfss://container@account.dfs.core.windows.net/p",
    "http://127.0.0.1:9000/bucket and http://[::1]:80/x are endpoints",
    "spark://one:7077,two:7077 or hdfs://namenode:8020/p.",
    "write s3://BUCKET/PREFIX, gs://... or file:///data: nothing else",
    "C:/data, /data/a:b@c and key='ann'",
    "row {'key': 'ann', 'n': 1}",
    "operator 'token': no state 'password'; declared: n",
    "http://host/p?next=http://host/q#top and customer_key=7, mail to me@host",
    "jdbc:oracle:thin:@//host:1521/d",
    "<Error><Code>SignatureDoesNotMatch</Code></Error>",
)


@pytest.mark.parametrize("text", [*LOCATIONS, *TEXTS])
def test_nothing_of_a_secret_is_left(text: str) -> None:
    for said in (text, f"cannot read {text}: no", f"cannot read {text!r}", f"({text})"):
        clean = redacted(said)
        assert "K7MDENG" not in clean and "UtnFEMI" not in clean
        assert "***" in clean
        assert redacted(clean) == clean


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_addresses_within_addresses() -> None:
    for times in (1, 10, 100, 2000):
        clean = redacted("http://host/" * times + "s3://AKID:K7MDENG@bucket")
        assert "K7MDENG" not in clean and redacted(clean) == clean
        assert clean.startswith("http://host/")


def test_the_place_stays() -> None:
    for secret in SECRETS:
        assert redacted(f"s3a://AKID:{secret}@bucket/p: no") == "s3a://***@bucket/p: no"


@pytest.mark.parametrize("location", LOCATIONS)
def test_every_location_is_refused_without_its_secret(location: str, tmp_path: Path) -> None:
    calls = {
        "open_storage": lambda: open_storage(location),
        "Job": lambda: Job("j", checkpoint=location),
        "ParquetSink": lambda: ParquetSink(location),
        "open": lambda: ps.open(location, key="long", states={"n": ps.ValueState("long")}),
        "read_state": lambda: ps.read_state(location, "n"),
        "savepoint": lambda: ps.savepoint(tmp_path, location),
        "rescale": lambda: ps.rescale(location, tmp_path, max_parallelism=256),
        "export_state": lambda: ps.export_state(tmp_path, location),
        "verify": lambda: ps.verify(location),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        said = f"{caught.value} {caught.value!r} {caught.value.args}"
        assert "credentials" in said or "the scheme" in said, name
        assert "K7MDENG" not in said and "UtnFEMI" not in said, name


@pytest.mark.parametrize(
    "location",
    [
        *("s3://bucket/a@b/c:d", "/data/token=1/x", "a:b@c", "s3://bucket/token=1/x", "out?sig"),
        *("password=1/x", "/data/sv=1/sig=2"),
        *(part * 20_000 for part in ("sv=1&", "sig=1&", "a=", "a=b;")),
    ],
    ids=lambda location: location[:30],
)
def test_places_are_not_refused(location: str) -> None:
    assert not has_credentials(location)


def test_urls_that_cannot_be_taken_apart_are_not_shown() -> None:
    for url in ("s3://[K7MDENG/p", "https://x[K7MDENG]/p"):
        for call in (open_storage, ParquetSink):
            with pytest.raises(InvalidArgumentError) as caught:
                call(url)
            assert "K7MDENG" not in str(caught.value)


def test_an_error_has_no_secret_wherever_it_is_kept() -> None:
    url = "s3://AKID:a/K7MDENG@bucket"
    for error in (
        PystateError(f"no {url}", url),
        ps.errors.NoSpaceError(28, f"no {url}", url),
        ps.errors.UnknownStateError(url),
        failure(f"sink {url}", OSError(f"{url}: refused"), "nothing was published"),
    ):
        for kept in (error, pickle.loads(pickle.dumps(error))):
            assert "K7MDENG" not in f"{kept} {kept!r} {kept.args}"
            assert "***@bucket" in str(kept)
    assert ps.errors.NoSpaceError(28, "full").errno == 28


def test_arguments_are_shown_without_secrets() -> None:
    options = {"key": "K7MDENG", "client": {"token": "K7MDENG", "retries": 3}}
    assert shown(options) == (
        "{'key': '***', 'client': {'token': '***', 'retries': 3}} of type dict"
    )
    # A line is cut only after that.
    assert "K7" not in shown(["s3://AKID:" + "x/K7MDENG" * 20 + "@bucket"])
    assert without_secrets({"fs.s3a.secret.key": b"K7MDENG", "n": None}) == {
        "fs.s3a.secret.key": "***",
        "n": None,
    }
    for name in (
        "secret",
        "password",
        "token",
        "key",
        "fs.s3a.access.key",
        "AWSAccessKeyId",
        "sig",
    ):
        assert is_secret(name)
    for name in ("path", "keys", "monkey business", "region"):
        assert not is_secret(name)


def test_a_logger_writes_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("pystate.test_redaction")
    assert logger("pystate.test_redaction") is log and len(log.filters) == 1
    try:
        raise OSError("s3://AKID:a/K7MDENG@bucket is gone")
    except OSError as error:
        with caplog.at_level(logging.WARNING, log.name):
            log.exception("sink %r: %s", {"password": "K7MDENG"}, error)
    assert "K7MDENG" not in caplog.text
    assert "sink {'password': '***'}: s3://***@bucket is gone" in caplog.text
    # A formatter may print the trace, or the exception itself, as Spark's of JSON does.
    [record] = caplog.records
    assert record.exc_text is not None and record.exc_info is not None
    assert "OSError: s3://***@bucket is gone" in record.exc_text
    assert repr(record.exc_info[1]) == "OSError('s3://***@bucket is gone')"


class Gone:
    """What cannot be shown any more."""

    def __str__(self) -> str:
        raise ConnectionError("nobody answers")


def test_what_cannot_be_shown_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pystate.test_redaction"):
        logger("pystate.test_redaction").warning("could not close: %s", Gone())
    assert "could not close: %s" in caplog.text and "ConnectionError" in caplog.text


def test_every_log_of_the_package_is_written_by_it() -> None:
    package = Path(ps.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "= logging.getLogger(" in path.read_text("utf-8")
    ]
    # A logger of Spark's or of the user's program is not ours.
    assert sorted(found) == ["examples/_console.py", "redaction.py"]


def test_a_notebook_shows_no_secret() -> None:
    html = panel("job", {"failure": OSError("s3://AKID:a/K7MDENG@bucket"), "n": 1})
    assert "K7MDENG" not in html and "***@bucket" in html


def test_a_manifest_takes_no_transaction_with_a_secret() -> None:
    require_no_credentials({"path": "s3://bucket/p", "files": [["a@b:c", 1]], "token": 7}, "it")
    with pytest.raises(InvalidArgumentError, match="it contains credentials") as caught:
        require_no_credentials({"files": [{"url": "s3://AKID:a/K7MDENG@bucket/p"}]}, "it")
    assert "K7MDENG" not in str(caught.value)


def test_names_that_manifests_keep_have_no_secret(tmp_path: Path) -> None:
    secret = "postgresql://me:a/K7MDENG@host/db"
    calls = {
        "job": lambda: Job(secret, checkpoint=tmp_path),
        "sink": lambda: foreach_epoch(print, name=secret),
        "uid": lambda: checked_uid(secret),
        "run key": lambda: checked_run_key(f"{secret}/2026-01-01"),
    }
    for what, call in calls.items():
        with pytest.raises(InvalidArgumentError, match="contains credentials") as caught:
            call()
        assert "K7MDENG" not in str(caught.value), what
    for database in DATABASES:
        with pytest.raises(InvalidArgumentError, match="contains credentials"):
            checked_run_key(database)
    assert checked_run_key("s3://bucket/2026-01-01?part=3") == "s3://bucket/2026-01-01?part=3"


class Masked(ps.AggregateFunction):
    """Aggregates under a secret."""

    def __init__(self, token: str, most: int) -> None:
        self.token = token
        self.most = most

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return accumulator + hash((self.token, value)) % self.most

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def result(self, accumulator: int) -> int:
        return accumulator


def test_a_state_is_spelled_without_a_secret_of_its_function() -> None:
    spelled = ps.AggregatingState(Masked("K7MDENG", 3)).stored_as()
    assert "K7MDENG" not in spelled and "most=3" in spelled
    assert spelled == ps.AggregatingState(Masked("another", 3)).stored_as()
    declared = declared_as(spelled)
    assert declared.stored_as() == spelled
