"""Addresses as files of settings have them, `host:port` (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/,\s]*)):([0-9]{1,5})")


class HostPort(NamedTuple):
    """Where to listen or to connect; an empty host is every address of the machine."""

    host: str
    port: int


def parse_host_port(text: str) -> HostPort | None:
    """IPv6 in brackets; None if the text is no address."""
    found = _ADDRESS.fullmatch(text)
    if not found or int(found[3]) > 65535:
        return None
    return HostPort(found[1] or found[2], int(found[3]))


def unreachable(addresses: str) -> list[str]:
    """Those of `host1:9092,host2:9092` that nobody can connect to, as they are written."""
    found = [(text.strip(), parse_host_port(text.strip())) for text in addresses.split(",")]
    return [text for text, address in found if not address or not all(address)]
