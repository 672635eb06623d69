"""Hosts with an address and a network of their own, whose links can be cut in each direction.

Each host is a network namespace, joined by a bridge in the namespace of the harness, where clients
and ZooKeeper are, ZooKeeper at an address of its own. A cut drops packets without a word. All of it
is in namespaces that the kernel removes with the last of their processes: `inside` begins them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from lab.shell import run, run_all

ZOOKEEPER = "10.77.0.250"
CLIENTS = "10.77.0.254"
_MARK = "KDIST_CHAOS_INSIDE"
_RULES = """
table ip faults {
  set senders { type ipv4_addr; }
  set receivers { type ipv4_addr; }
  chain input {
    type filter hook input priority 0
    ip saddr @senders drop
  }
  chain output {
    type filter hook output priority 0
    ip daddr @receivers drop
  }
}
"""


def inside(*command: str) -> None:
    """Run the command in place of this process in namespaces of its own; return if it is in them.

    Networks, mounts and processes that it starts end with it, however it ends.
    """
    if _MARK in os.environ:
        return
    own = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    os.environ[_MARK] = "yes"
    os.execvp("unshare", ["unshare", *own, "--", sys.executable, *command])


def make_switch() -> None:
    """The bridge that joins the hosts."""
    # An unmount in this namespace shall be one in those of the hosts' processes too.
    run("mount", "--make-rshared", "/")
    Path("/run/netns").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "switch", "type", "bridge")
    for address in (CLIENTS, ZOOKEEPER):
        run("ip", "address", "add", f"{address}/24", "dev", "switch")
    run("ip", "link", "set", "switch", "up")


class Link:
    """A host's connection to the others."""

    def __init__(self, number: int) -> None:
        self.address = f"10.77.0.{number}"
        self.namespace = f"host{number}"
        self._port = f"port{number}"
        enter = ("ip", "-n", self.namespace)
        ends = ("type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run_all(
            [
                ("ip", "netns", "add", self.namespace),
                ("ip", "link", "add", self._port, *ends),
                ("ip", "link", "set", self._port, "master", "switch", "up"),
                (*enter, "address", "add", f"{self.address}/24", "dev", "eth0"),
                (*enter, "link", "set", "lo", "up"),
                (*enter, "link", "set", "eth0", "up"),
            ]
        )
        run(*self.entered("nft", "--file", "-"), given=_RULES)

    def entered(self, *command: str) -> list[str]:
        """The command, to run on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def drop_from(self, addresses: Iterable[str]) -> None:
        """Receive nothing that these send."""
        self._add("senders", addresses)

    def drop_to(self, addresses: Iterable[str]) -> None:
        """Have nothing of what is sent to these arrive."""
        self._add("receivers", addresses)

    def _add(self, name: str, addresses: Iterable[str]) -> None:
        elements = f"{{ {', '.join(addresses)} }}"
        run(*self.entered("nft", "add", "element", "ip", "faults", name, elements))

    def mend(self) -> None:
        """Undo what is dropped."""
        for name in ("senders", "receivers"):
            run(*self.entered("nft", "flush", "set", "ip", "faults", name))

    def unplug(self) -> None:
        """Nothing passes any more, not even the reset with which a killed process' host answers."""
        run("ip", "link", "set", self._port, "down")

    def plug(self) -> None:
        """Undo `unplug`."""
        run("ip", "link", "set", self._port, "up")
