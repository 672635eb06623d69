"""Rows that several clients' tables of settings share, each under a name of its own (pure).

And what is checked of a value wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kdist.config.declare import setting
from kdist.errors import UserError

FINDING = "Finding the brokers"

_TEXT_BYTES_MAX = 32767  # a string's length is an int16 on the wire

Servers = str | Iterable[str]
"""`host:port`, several between commas, or a list of such texts."""
SERVERS = ("bootstrap_servers", "broker_list")  # the settings that are


def server_list(name: str, given: Servers | None) -> tuple[str, ...]:
    """Each address by itself, none for None; `UserError` for what is no text, and no list of it."""
    texts: Any = (given,) if isinstance(given, str) else () if given is None else given
    if not isinstance(texts, bytes | Mapping) and isinstance(texts, Iterable):
        texts = tuple(texts)
        if all(isinstance(each, str) for each in texts):
            check_text(name, texts)
            parts = (part.strip() for each in texts for part in each.split(","))
            return tuple(part for part in parts if part)
    raise UserError(
        f"{name} is {given!r}, and must be host:port, several between commas, or a list of them"
    )


def check_text(name: str, value: Any) -> None:
    """`UserError` for text that cannot be sent: halves of characters, or more than a header has
    room for."""
    texts = value if isinstance(value, list | tuple) else (value,)
    for text in texts:
        try:
            if isinstance(text, str):
                text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{name} is {value!r}, which UTF-8 cannot say: {error.reason}"
            ) from None
    if isinstance(value, str) and len(value.encode()) > _TEXT_BYTES_MAX:
        raise UserError(f"{name} has {len(value.encode())} bytes, and may have {_TEXT_BYTES_MAX}")


def check_client_id(client_id: Any) -> None:
    """As `check_text`, where no table says that it is text."""
    if not isinstance(client_id, str):
        raise UserError(f"client_id is {client_id!r}, and must be text")
    check_text("client_id", client_id)


def bootstrap_servers(name: str) -> Any:
    """`tuple[str, ...]`."""
    return setting(
        name, default=(), subject=FINDING, doc="Brokers to ask for the others: host:port."
    )


def zk_connect(name: str) -> Any:
    """`str`."""
    return setting(
        name,
        default="",
        subject=FINDING,
        doc="A ZooKeeper ensemble whose /brokers/ids names the brokers, instead of these.",
    )


def request_timeout_ms(name: str, subject: str) -> Any:
    """`int32`."""
    return setting(
        name,
        default=30_000,
        minimum=1,
        unit="ms",
        subject=subject,
        doc="How long a broker may take to answer before its connection is given up.",
    )


def fetch_min_bytes(name: str, subject: str) -> Any:
    """`int32`."""
    return setting(
        name,
        default=1,
        minimum=0,
        unit="bytes",
        subject=subject,
        doc="A broker waits for so much before it answers a fetch.",
    )
