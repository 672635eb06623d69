"""`zookeeper.connect`: the ensemble's servers, and the chroot that is the cluster's root (pure).

host1:2181,host2:2181/kdist    two servers, and every path is below /kdist
host1                          port 2181, and no chroot
"""

from __future__ import annotations

from typing import NamedTuple

from kdist.errors import UserError
from kdist.model import read_digits

DEFAULT_PORT = 2181


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
