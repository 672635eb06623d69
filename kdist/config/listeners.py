"""Listeners, `NAME://host:port`, and the protocols that their names stand for (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

PROTOCOLS = ("PLAINTEXT",)

_LISTENER = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/\s]*)):([0-9]{1,5})")


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
    found = _LISTENER.fullmatch(text)
    if not found or int(found[4]) > 65535:
        raise ValueError(f"{text!r} is not of the form NAME://host:port")
    return Listener(found[1].upper(), found[2] or found[3], int(found[4]))


def parse_protocol_map(items: Iterable[str]) -> dict[str, str]:
    """Listener names with their protocols; `ValueError` if an item is not `NAME:PROTOCOL`."""
    protocols = {}
    for item in items:
        name, colon, protocol = item.partition(":")
        if not (name and colon and protocol):
            raise ValueError(f"{item!r} is not of the form NAME:PROTOCOL")
        protocols[name.upper()] = protocol.upper()
    return protocols
