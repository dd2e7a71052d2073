"""The one place that knows what a secret looks like, and takes it out of what people read.

Every message of an error goes through `redacted` when the error is made, every log of pystate
through `logger`, and every location that a user gives is asked for credentials before it is used.
What is hidden may be more than the secret; it is never less.

Thread safety: functions without state.

Invariants
----------
1. Redacting twice is redacting once.
2. A text that was cut short anywhere shows no part of a secret, as long as the name or the address
   in front of the secret is still there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from urllib.parse import unquote

#: What stands where a secret was.
HIDDEN = "***"

#: In what follows the // the part before a @ is a container, not a user.
_CONTAINERS = frozenset(["abfs", "abfss", "wasb", "wasbs"])
#: An address; those of object stores are recognised with any number of slashes.
_ADDRESS = re.compile(
    r"(?<![\w+.-])(?P<scheme>[A-Za-z][\w+.-]*(?=://)|(?i:s3[an]?|gs|gcs|az|azure|adl|abfss?|wasbs?)(?=:))"
    r"(?P<slashes>:/*)(?P<rest>[^\s'\"<>`\\]+)"
)
_HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^:@%]*)(?::\d*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
#: A password may have what ends an address in a sentence; then its end stands in front of a @.
_REST = re.compile(r"(?<=[:/]\*{3})(?=[\s'\"<>`\\])(?:(?!://)[^@\n]){1,64}(?=@)")
#: Oracle's addresses have the user and the password without slashes in front of them.
_ORACLE = re.compile(r"(?i)(?P<head>\bjdbc:oracle:\w+:)[^\s'\"]{1,256}(?=@)")
#: How many addresses within each other are read; what is deeper is hidden.
_DEPTH = 30
#: What ends a sentence is not part of an address.
_STOPS = ":;,.)]}>"

#: Words that make a name that of a secret, whatever stands around them and between their parts.
_WORD = (
    r"secret|passw(?:or)?d|passphrase|pwd|token|credentials?|signature|authorization"
    r"|(?:access|account|api|private|shared|master|encryption|storage|sse[._ -]customer)[._ -]?key"
    r"|jaas[._ -]?config|connection[._ -]?string"
)
#: Names that count only as a whole.
_WHOLE = r"sig|sas|pass|awsaccesskeyid|googleaccessid|x-amz-[\w-]+|x-goog-[\w-]+"
_SECRET_NAME = rf"(?:[\w.-]*?(?:{_WORD})[\w.-]*|(?:{_WHOLE}))"
#: In a query, such as ?key=..., and as the name of an option also this one is a secret.
_NAME = re.compile(rf"{_SECRET_NAME}|[\w.-]*key|auth", re.I)
#: A quoted value, perhaps with its end cut off; in a repr of a text its quotes may be escaped.
_VALUE = r"\\+\"[^\"]*\"?|\\+'[^']*'?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
_ASSIGNED = re.compile(
    rf"(?<![\w.-])(?P<name>{_SECRET_NAME})(?P<sign>=)(?P<value>{_VALUE}|[^\s;&'\",]+)", re.I
)
#: An item of a dict, of JSON or of a list of pairs.
_ITEM = re.compile(
    rf"(?P<quote>\\*['\"])(?P<name>{_SECRET_NAME})(?P=quote)(?P<sign>\s*[:,]\s*b?)(?P<value>{_VALUE})",
    re.I,
)
#: Beside a secret, "key" is the other half of it, as in s3fs's options; alone it is any key.
_KEY_ITEM = re.compile(
    rf"(?P<head>(?P<quote>\\*['\"])key(?P=quote)\s*[:,]\s*b?)(?P<value>{_VALUE})", re.I
)
_QUERY_ITEM = re.compile(r"(?P<head>[?&#](?P<name>[\w.%-]+)=)(?P<value>[^\s&#'\"]+)")
#: Of XML, in which stores answer.
_ELEMENT = re.compile(rf"<(?P<name>{_SECRET_NAME})>(?P<value>[^<]+)", re.I)
_PRIVATE_KEY = re.compile(
    r"(?P<head>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?P<tail>-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.S,
)
_HEADER = re.compile(
    r"(?i)(?P<head>\b(?:Bearer|Basic)\s+)[\w.~+/=-]{6,}"
    r"|(?P<line>\bAuthorization['\"]?\s*[:=]\s*['\"]?)(?!\*{3})[^\s'\"][^'\"\n]*"
)
#: Connection strings that are no addresses, and would be taken for the name of a folder.
_CONNECTION = re.compile(
    r"(?i)(?:AccountKey|SharedAccessKey|SharedAccessSignature|AccountName|BlobEndpoint)\s*="
    r"|(?:^|[\s;])[^\s;=]*\w=[^\s;]*[\s;]+(?:password|pwd)\s*="
    r"|^(?:password|pwd)\s*=[^\s;]*[\s;]+\w[\w ]*="
)
#: What SAS tokens have, in any order.
_PARTS = tuple(re.compile(rf"(?i)(?:^|[?&;\s]){name}=[^&]") for name in ("sv", "sig"))


def redacted(text: str) -> str:
    """Return a text without the secrets in it.

    Hidden are the user and password of addresses, whatever characters they have; the signatures,
    keys and tokens of queries, of connection strings and of SAS tokens; the values of options whose
    names say that they are secret; and headers that authorize a request.

    Examples
    --------
    >>> redacted("no bucket s3://AKIA:a/b+c@bucket/prefix")
    'no bucket s3://***@bucket/prefix'
    >>> redacted("abfss://container@account.dfs.core.windows.net/x?sv=1&sig=abc")
    'abfss://container@account.dfs.core.windows.net/x?sv=1&sig=***'
    """
    if ":" in text:
        text = _REST.sub("", _ADDRESS.sub(_address, text))
        text = _ORACLE.sub(lambda user: user["head"] + HIDDEN, text)
        text = _ITEM.sub(_pair, text)
        if HIDDEN in text:
            text = _KEY_ITEM.sub(lambda item: item["head"] + _hidden_text(item["value"]), text)
    elif "'" in text or '"' in text:
        text = _ITEM.sub(_pair, text)
    if "=" in text:
        text = _QUERY_ITEM.sub(_query_item, text)
        text = _ASSIGNED.sub(_pair, text)
    if "<" in text:
        text = _ELEMENT.sub(_pair, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(lambda key: f"{key['head']}{HIDDEN}{key['tail']}", text)
    return _HEADER.sub(lambda header: f"{header['head'] or header['line']}{HIDDEN}", text)


def _address(match: re.Match[str], depth: int = 0) -> str:
    scheme, rest = match["scheme"].lower(), match["rest"]
    start = f"{match['scheme']}{match['slashes']}"
    stops = rest[len(rest.rstrip(_STOPS)) :]
    rest = rest[: len(rest) - len(stops)] if stops else rest
    if not _has_user(scheme, rest):
        if "://" not in rest:
            return match[0]
        # Another address is in its path or query, and perhaps another one in that.
        inner = HIDDEN
        if depth < _DEPTH:
            inner = _ADDRESS.sub(lambda next_: _address(next_, depth + 1), rest)
        return f"{start}{inner}{stops}"
    _, at, place = rest.rpartition("@")
    return f"{start}{HIDDEN}{at}{place if at else ''}{stops}"


def _has_user(scheme: str, rest: str) -> bool:
    """Whether what follows the scheme of an address begins with a user or a password."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if scheme in _CONTAINERS and authority.count("@") == 1:
        authority = authority.replace("@", "")
    if authority == HIDDEN or "@" in authority:
        return True
    if not _HOSTS.fullmatch(authority):
        return ":" in authority or "%3a" in authority.lower()
    # What looks like a port is the begin of a password if a @ follows in the path.
    return ":" in authority.strip("[]") and "@" in rest.partition("?")[0]


def _hidden_text(value: str) -> str:
    quote = "'" if value.lstrip("\\")[:1] == "'" else '"' if '"' in value[:9] else ""
    return f"{quote}{HIDDEN}{quote}"


def _pair(match: re.Match[str]) -> str:
    start = match[0][: match.start("value") - match.start()]
    return start + _hidden_text(match["value"])


def _query_item(match: re.Match[str]) -> str:
    secret = is_secret(unquote(match["name"])) or (
        "%" in match["value"] and has_credentials(unquote(match["value"]))
    )
    return f"{match['head']}{HIDDEN}" if secret else match[0]


@cache
def is_secret(name: str) -> bool:
    """Whether an option of this name has a secret as its value."""
    return _NAME.fullmatch(name) is not None


def without_secrets(options: Mapping[str, object]) -> dict[str, object]:
    """Options as they may be shown: by their names, or by what the values look like."""
    return {name: _shown(name, value) for name, value in options.items()}


def _shown(name: object, value: object) -> object:
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(name, str) and is_secret(name) and isinstance(value, (str, bytes)):
        return HIDDEN
    return redacted(value) if isinstance(value, str) else value


def has_credentials(location: str) -> bool:
    """Whether a location names more than a place: a user, a password, a signature or a token.

    A path may have any characters. Only an address and a connection string can have credentials.
    """
    address = location[5:] if location[:5].lower() == "jdbc:" else location
    matched = _ADDRESS.match(address)
    if matched is None:
        if any(form.search(location) for form in (_CONNECTION, _ORACLE)):
            return True
        return all(part.search(location) for part in _PARTS)
    rest = address[matched.start("rest") :]
    if _has_user(matched["scheme"].lower(), rest) or _ADDRESS.sub(_address, rest) != rest:
        return True
    # In a path, password=1 is a partition.
    place = re.match(r"[^?#;]*", rest)
    options = rest[place.end() if place else 0 :].replace(HIDDEN, "x")
    return redacted(options) != options


class _RedactingFilter(logging.Filter):
    """Takes secrets out of a record before any handler sees it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message, and the trace as it will be printed."""
        try:
            text = record.getMessage()
        except Exception as error:
            # As of an exception of Java's whose JVM has gone: to log it must not raise another one.
            text = f"{record.msg} (what belongs to it cannot be shown: {type(error).__name__})"
        record.msg, record.args = redacted(text), ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            trace = logging.Formatter().formatException(record.exc_info)
            record.exc_text = redacted(trace)
            if record.exc_text != trace:
                # For formatters that print the exception itself, as Spark's of JSON does.
                kind, raised, frames = record.exc_info
                shown = type(kind.__name__, (Exception,), {"__module__": kind.__module__})
                record.exc_info = shown, shown(redacted(str(raised))), frames
        return True


def logger(name: str) -> logging.Logger:
    """Return the logger of this name; what is logged by it shows no secrets."""
    named = logging.getLogger(name)
    if not any(isinstance(each, _RedactingFilter) for each in named.filters):
        named.addFilter(_RedactingFilter())
    return named
