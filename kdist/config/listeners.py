"""Listeners, `NAME://host:port`, and the protocols that their names stand for (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from kdist.config.addresses import parse_host_port

PROTOCOLS = ("PLAINTEXT",)

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Listener(NamedTuple):
    """A named address; an empty host is every address of the machine."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listener(text: str) -> Listener:
    """`ValueError` with a sentence if the text is not `NAME://host:port`."""
    name, _, address = text.partition("://")
    found = parse_host_port(address)
    if not _NAME.fullmatch(name) or found is None:
        raise ValueError(f"{text!r} is not of the form NAME://host:port")
    return Listener(name.upper(), *found)


def parse_protocol_map(items: Iterable[str]) -> dict[str, str]:
    """Listener names with their protocols; `ValueError` if an item is not `NAME:PROTOCOL`."""
    protocols = {}
    for item in items:
        name, colon, protocol = item.partition(":")
        if not (name and colon and protocol):
            raise ValueError(f"{item!r} is not of the form NAME:PROTOCOL")
        protocols[name.upper()] = protocol.upper()
    return protocols
