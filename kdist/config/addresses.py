"""`host:port` addresses in settings (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/,\s]*)):([0-9]{1,5})")


class HostPort(NamedTuple):
    """Where to listen or to connect; an empty host is every address of the machine."""

    host: str
    port: int


def parse_host_port(text: str) -> HostPort | None:
    """Parse `host:port`, with IPv6 in brackets; None if the text is not an address."""
    found = _ADDRESS.fullmatch(text)
    if not found or int(found[3]) > 65535:
        return None
    return HostPort(found[1] or found[2], int(found[3]))


def unreachable(addresses: str) -> list[str]:
    """The items of `host1:9092,host2:9092` that lack a host or port to connect to."""
    found = [(text.strip(), parse_host_port(text.strip())) for text in addresses.split(",")]
    return [text for text, address in found if not address or not all(address)]
