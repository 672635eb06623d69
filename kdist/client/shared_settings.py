"""Settings that several clients share, each under its own name, and common checks (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kdist.config.declare import setting
from kdist.errors import UserError

FINDING = "Finding the brokers"

_TEXT_BYTES_MAX = 32767  # a string's length is an int16 on the wire

Servers = str | Iterable[str]
"""`host:port`, several separated by commas, or a list of such strings."""
SERVERS = ("bootstrap_servers", "broker_list")  # the settings of that type


def server_list(name: str, given: Servers | None) -> tuple[str, ...]:
    """The single addresses, none for None; `UserError` unless given a string or a list of them."""
    texts: Any = (given,) if isinstance(given, str) else () if given is None else given
    if not isinstance(texts, bytes | Mapping) and isinstance(texts, Iterable):
        texts = tuple(texts)
        if all(isinstance(each, str) for each in texts):
            check_text(name, texts)
            parts = (part.strip() for each in texts for part in each.split(","))
            return tuple(part for part in parts if part)
    raise UserError(
        f"{name} is {given!r}, and must be host:port, several separated by commas, or a list"
    )


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


def check_client_id(client_id: Any) -> None:
    """As `check_text`, for a client id that no table of settings has checked to be text."""
    if not isinstance(client_id, str):
        raise UserError(f"client_id is {client_id!r}, and must be text")
    check_text("client_id", client_id)


def bootstrap_servers(name: str) -> Any:
    """`tuple[str, ...]`."""
    return setting(
        name, default=(), subject=FINDING, doc="Brokers to find the others through: host:port."
    )


def zk_connect(name: str) -> Any:
    """`str`."""
    return setting(
        name,
        default="",
        subject=FINDING,
        doc="A ZooKeeper ensemble to find the brokers in, instead of bootstrap servers.",
    )


def request_timeout_ms(name: str, subject: str) -> Any:
    """`int32`."""
    return setting(
        name,
        default=30_000,
        minimum=1,
        unit="ms",
        subject=subject,
        doc="How long a broker may take to answer before its connection is closed.",
    )


def fetch_min_bytes(name: str, subject: str) -> Any:
    """`int32`."""
    return setting(
        name,
        default=1,
        minimum=0,
        unit="bytes",
        subject=subject,
        doc="How many bytes a broker waits to have before it answers a fetch.",
    )
