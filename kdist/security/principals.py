"""The texts of principals and of the addresses that they come from, as Kafka writes them."""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache

from kdist.model import Principal

_NAMES_REMEMBERED = 10_000


def format_principal(principal: Principal) -> str:
    """`User:alice`."""
    return f"{principal.kind}:{principal.name}"


def parse_principal(text: str) -> Principal:
    """What `format_principal` wrote; ValueError if the text has no kind. A name may have colons."""
    kind, colon, name = text.partition(":")
    if not (kind and colon):
        raise ValueError(f"{text!r} is not a principal, such as User:alice")
    return Principal(kind, name)


def parse_super_users(text: str) -> frozenset[Principal]:
    """Principals between semicolons, as names of certificates have commas; ValueError if not."""
    return frozenset(parse_principal(part.strip()) for part in text.split(";") if part.strip())


@lru_cache(_NAMES_REMEMBERED)
def host_text(address: str) -> str:
    """An address as Java writes it, since ACLs compare texts; any other text as it is.

    IPv6 in eight groups without leading zeros (`0:0:0:0:0:0:0:1`), IPv4 within IPv6 as IPv4.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    groups = ":".join(f"{group:x}" for group in struct.unpack(">8H", ip.packed))
    return f"{groups}%{ip.scope_id}" if ip.scope_id else groups
