"""Addresses in settings: `host:port`, listeners, and ZooKeeper's servers (pure).

b1:9092, [::1]:9092            a host and a port
NAME://host:port               a listener; what protocol its name stands for, a map says
host1:2181,host2:2181/kdist    `zookeeper.connect`: servers, and the chroot, which is the
                               cluster's root: every path is below /kdist
host1                          the same with port 2181, and no chroot
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

from kdist.errors import UserError
from kdist.model import read_digits

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PORT = 2181

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/,\s]*)):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


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


def parse_numbers_by_host(items: Iterable[str]) -> dict[str, int]:
    """The number for each address, as in `10.0.0.1:5` or `[::1]:5`; `ValueError` with a claim."""
    numbers = {}
    for item in items:
        host, _, digits = item.rpartition(":")
        number = read_digits(digits)
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            number = None
        if number is None:
            raise ValueError(f"has {item!r}, which is not of the form address:number")
        numbers[plain_address(str(address))] = number
    return numbers


def plain_address(host: str) -> str:
    """The shortest text of an IP address, of IPv4 also where IPv6 holds it; else the host."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


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


def listener_protocols(listeners: Iterable[str], protocol_map: Iterable[str]) -> dict[str, str]:
    """The protocol of each listener, by name; `ValueError` with a claim if one has none."""
    protocols = parse_protocol_map(protocol_map)
    found = {}
    for name in (parse_listener(text).name for text in listeners):
        if name not in protocols:
            raise ValueError(f"listener.security.protocol.map has no protocol for {name}")
        if protocols[name] not in PROTOCOLS:
            raise ValueError(
                f"the protocol {protocols[name]} of {name} is none of {', '.join(PROTOCOLS)}"
            )
        found[name] = protocols[name]
    return found


class ConnectString(NamedTuple):
    """Servers as `host:port`, and the chroot: "" or an absolute path without trailing slash."""

    servers: tuple[str, ...]
    chroot: str

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """`UserError` with a sentence if it is not of the form above."""
        hosts, slash, root = text.strip().partition("/")
        servers = tuple(_server(host.strip(), text) for host in hosts.split(","))
        names = root.rstrip("/").split("/") if root.rstrip("/") else []
        if "," in root:
            raise UserError(
                f"zookeeper.connect {text!r}: {slash}{root} is one path for all servers, which"
                " follows the last of them, and has no comma"
            )
        if any(name in ("", ".", "..") for name in names):
            raise UserError(f"zookeeper.connect {text!r}: {slash}{root} is not a path")
        return cls(servers, "".join(f"/{name}" for name in names))

    def full(self, path: str) -> str:
        """The full path in the ensemble's tree, of one below the chroot."""
        return (self.chroot + path).rstrip("/") or "/"

    def own(self, path: str) -> str:
        """The path below the chroot, of a full one."""
        assert path.startswith(self.chroot), "every path was made by `full`"
        return path[len(self.chroot) :] or "/"

    def shown(self, path: str) -> str:
        """The path for a message: below the chroot if it is there, else in full."""
        return self.own(path) if f"{path}/".startswith(f"{self.chroot}/") else path

    def __str__(self) -> str:
        return ",".join(self.servers) + self.chroot


def _server(host: str, text: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):  # an IPv6 address without a port ends in a bracket
        name, port = host, str(DEFAULT_PORT)
    bracketed = name.startswith("[") and name.endswith("]")
    is_name = _can_be_resolved(name) and (bracketed or ":" not in name)
    if not is_name or not _is_port(port):
        raise UserError(f"zookeeper.connect {text!r}: {host!r} is not of the form host:port")
    return f"{name}:{port}"


def _can_be_resolved(name: str) -> bool:
    """Whether it can be a host name: an empty label, as in a..b, would make the resolver raise."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def _is_port(text: str) -> bool:
    return 0 < (read_digits(text) or 0) < 65536
