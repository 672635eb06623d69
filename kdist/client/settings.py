"""The one reader of clients' settings, and the rows that several clients share (pure).

A name may have dots or underscores. A value is a Python value, or text as in a properties file. So
a file, a command's options and a call read alike. Type checkers see Python's names and types only,
in each client's `...Keywords`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from kdist.client.cluster import did_you_mean
from kdist.client.foreign import SETTINGS, hint
from kdist.client.security import check_security
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import Setting, Settings, setting
from kdist.config.kinds import Kind, show_text
from kdist.errors import UserError, WrongType

S = TypeVar("S", bound=Settings)

FINDING = "Finding the brokers"

_TEXT_BYTES_MAX = 32767  # a string's length is an int16 on the wire

Servers = str | Iterable[str]
"""`host:port`, several separated by commas, or a list of such strings."""
SERVERS = ("bootstrap_servers", "broker_list")  # the settings of that type


class ClientKeywords(TypedDict, total=False):
    """What every client takes by name, beside `bootstrap_servers`."""

    zk_connect: str
    client_id: str
    request_timeout_ms: int


def server_list(name: str, servers: Servers | None) -> tuple[str, ...]:
    """The single addresses, none for None; `UserError` unless given a string or a list of them."""
    texts: Any = (servers,) if isinstance(servers, str) else () if servers is None else servers
    if not isinstance(texts, bytes | Mapping) and isinstance(texts, Iterable):
        texts = tuple(texts)
        if all(isinstance(each, str) for each in texts):
            check_text(name, texts)
            parts = (part.strip() for each in texts for part in each.split(","))
            return tuple(part for part in parts if part)
    if isinstance(servers, Mapping):
        raise WrongType(f"{name} is a dict: give settings by name, as in Producer(**settings)")
    raise UserError(
        f"{name} is {servers!r}, and must be host:port, several separated by commas, or a list"
    )


def settings_from(
    kind: type[Settings], given: Mapping[str, Any], owner: str, others: Iterable[str] = ()
) -> dict[str, Any]:
    """The given settings of `owner`, such as "a producer", typed, by attribute.

    `UserError` for the first that is wrong. `others` are the owner's other arguments, of which a
    wrong name may be a misspelling.

    >>> from kdist.client.producer.settings import ProducerSettings
    >>> settings_from(ProducerSettings, {"linger.ms": "5", "acks": 1}, "a producer")
    {'linger_ms': 5.0, 'acks': '1'}
    """
    rows = {row.name.replace(".", "_"): row for row in kind.TABLE}
    found = {}
    for name, value in given.items():
        row = rows.get(name.replace(".", "_"))
        if row is None:
            names = (*rows, *others)
            if "." in name:
                names = tuple(each.replace("_", ".") for each in rows)
            nearest = hint(SETTINGS, name) or did_you_mean(name, names)
            raise UserError(f"{owner} has no setting {name!r}{nearest}")
        found[row.attribute] = _read_value(row, name, value)
    return found


def read_settings(
    kind: type[S], given: Mapping[str, Any], owner: str, code: Sequence[str] = ()
) -> tuple[S, dict[str, Any]]:
    """All settings of `owner`, and its arguments named in `code`: those are the application's own.

    `UserError` for the first setting that is wrong or missing.
    """
    own = {name: value for name, value in given.items() if name in code}
    plain = {name: value for name, value in given.items() if name not in own}
    found = settings_from(kind, plain, owner, code)
    for row in kind.TABLE:
        if row.is_required and row.attribute not in found:
            raise UserError(f"{owner} needs {row.name}: {row.doc}")
    made = kind(**found)
    if isinstance(made, SecuritySettings):
        check_security(made)
    return made, own


def _read_value(row: Setting, name: str, value: Any) -> Any:
    if row.attribute in SERVERS:
        return server_list(name, value)
    if row.is_secret:
        return _read_secret(name, value)
    check_text(name, value)
    choices, is_nullable = row.shape.choices, row.shape.nullable
    if value is None and "none" in choices:
        return "none"
    try:
        if row.shape.kind is not Kind.STRING or choices:
            return row.read(show_text(tuple(value) if isinstance(value, list) else value))
    except (ValueError, TypeError):
        pass
    else:  # a name, which may begin and end with spaces
        if value is None or isinstance(value, str):
            return value or (None if is_nullable else "")
    allowed = "True or False" if row.shape.kind is Kind.BOOLEAN else row.allowed()
    raise UserError(f"{name} is {value!r}, and must be {allowed}{' or None' * is_nullable}")


def _read_secret(name: str, value: Any) -> str | None:
    """As it is given: a password may begin and end with spaces. No sentence shows it."""
    if not isinstance(value, str | None):
        raise UserError(f"{name} is of type {type(value).__name__}, and must be text")
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} has a character that UTF-8 cannot encode") from None
    return value or None


def check_text(name: str, value: Any) -> None:
    """`UserError` for text that no request can carry: not UTF-8 (a lone surrogate), or too long."""
    texts = value if isinstance(value, list | tuple) else (value,)
    for text in texts:
        try:
            if isinstance(text, str):
                text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{name} is {value!r}, which UTF-8 cannot encode: {error.reason}"
            ) from None
    if isinstance(value, str) and len(value.encode()) > _TEXT_BYTES_MAX:
        raise UserError(f"{name} has {len(value.encode())} bytes: the limit is {_TEXT_BYTES_MAX}")


def bootstrap_servers() -> Any:
    """`tuple[str, ...]`."""
    return setting(
        default=(), subject=FINDING, doc="Brokers to find the others through: host:port."
    )


def zk_connect() -> Any:
    """`str`."""
    return setting(
        default="",
        subject=FINDING,
        doc="A ZooKeeper ensemble to find the brokers in, instead of bootstrap servers.",
    )


def statistics_interval_ms() -> Any:
    """`int64`."""
    return setting(
        default=60_000,
        minimum=1,
        subject="Metrics",
        doc="How often on_statistics is called with the client's metrics, if it is given.",
    )


def check_hooks(kind: type, interceptors: Any, on_statistics: Any) -> None:
    """`UserError` unless these are interceptors of this kind, and a callable or None."""
    if not isinstance(interceptors, list | tuple):
        raise UserError(f"interceptors is {interceptors!r}, and must be a list")
    for each in interceptors:
        if not isinstance(each, kind):
            raise UserError(f"interceptors has {each!r}, which is no {kind.__name__}")
    if on_statistics is not None and not callable(on_statistics):
        raise UserError(f"on_statistics is {on_statistics!r}, and must be a callable")


def request_timeout_ms() -> Any:
    """`int32`."""
    return setting(
        default=30_000,
        minimum=1,
        doc="How long a broker may take to answer before its connection is closed.",
    )


def fetch_min_bytes() -> Any:
    """`int32`."""
    return setting(
        default=1,
        minimum=0,
        doc="How many bytes a broker waits to have before it answers a fetch.",
    )
