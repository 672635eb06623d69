"""The lab's network: a namespace with one bridge, and rules that cut and throttle its links.

The machine's own interfaces, routes and firewall are not touched: hosts, and the commands of
`lab run`, are in the namespace. It is entered with nsenter, since `ip netns exec` would hide the
cgroups from nspawn.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

from kdist.errors import UserError
from lab.hosts import Description, Host
from lab.place import BRIDGE, Place
from lab.shell import Command, run, run_all, succeeds, wait_until

Pair = tuple[IPv4Address, IPv4Address]
"""Sender, receiver."""

_SSH_S = 10.0
_TABLE = "kdist_lab"
# A packet from the first to the second of a pair is silently dropped on the bridge: the sender gets
# neither an ICMP error nor a reset.
_RULES = f"""
table bridge {_TABLE} {{
  set cut {{ type ipv4_addr . ipv4_addr; }}
  chain faults {{
    type filter hook forward priority 0;
    ip saddr . ip daddr @cut drop
  }}
}}
"""


def inside(place: Place, *command: str | Path) -> list[str | Path]:
    """The command prefixed to run in the lab's network namespace (pure)."""
    return ["nsenter", f"--net={place.netns}", *command]


def plan_up(place: Place, description: Description) -> list[Command]:
    """The commands that create the network (pure)."""
    address = f"{description.control_address}/{description.network.prefixlen}"
    return [
        ["ip", "netns", "add", place.name],
        inside(place, "ip", "link", "set", "lo", "up"),
        inside(place, "ip", "link", "add", BRIDGE, "type", "bridge"),
        inside(place, "ip", "address", "add", address, "dev", BRIDGE),
        inside(place, "ip", "link", "set", BRIDGE, "up"),
    ]


def make(place: Place, description: Description) -> None:
    """Create the network unless it is complete; remove an unfinished one first."""
    if is_made(place):
        return
    remove(place)
    run_all(plan_up(place, description))
    # Last, so that the table's presence proves that the network is complete.
    run(*inside(place, "nft", "--file", "-"), given=_RULES)


def is_made(place: Place) -> bool:
    """Whether the network is complete."""
    return place.netns.exists() and succeeds(
        *inside(place, "nft", "list", "table", "bridge", _TABLE)
    )


def refuse_if_down(place: Place) -> None:
    """Raise UserError if the lab's network does not exist."""
    if not place.netns.exists():
        raise UserError("the lab is down: `python -m lab up`")


def remove(place: Place) -> None:
    """Remove the network, after ending ssh's shared connections in it."""
    if place.netns.exists():
        for pid in _ssh_masters(place):
            with suppress(ProcessLookupError):  # it has already ended
                os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not list(_ssh_masters(place)), _SSH_S, "ssh to close its connections")
        run("ip", "netns", "delete", place.name)


def plan_cuts(
    ones: Iterable[Host], others: Iterable[Host], is_one_way: bool = False
) -> tuple[Pair, ...]:
    """The pairs to cut between `ones` and `others`; a host is never cut from itself (pure)."""
    others = tuple(others)
    there = [(a.address, b.address) for a in ones for b in others if a.address != b.address]
    back = [] if is_one_way else [(b, a) for a, b in there]
    return tuple(dict.fromkeys([*there, *back]))


def cut(place: Place, pairs: Iterable[Pair]) -> None:
    """Drop all packets between the pairs, in addition to earlier cuts."""
    refuse_if_down(place)
    elements = ", ".join(f"{a} . {b}" for a, b in pairs)
    if elements:
        run(*inside(place, "nft", "add", "element", "bridge", _TABLE, "cut", f"{{ {elements} }}"))


def heal(place: Place) -> None:
    """Remove all cuts."""
    refuse_if_down(place)
    run(*inside(place, "nft", "flush", "set", "bridge", _TABLE, "cut"))


def cuts(place: Place) -> list[Pair]:
    """The pairs that are cut now."""
    if not is_made(place):
        return []
    text = run(*inside(place, "nft", "--json", "list", "set", "bridge", _TABLE, "cut"))
    return parse_cuts(text)


def parse_cuts(text: str) -> list[Pair]:
    """The pairs in nft's JSON of the set (pure)."""
    sets = [item["set"] for item in json.loads(text)["nftables"] if "set" in item]
    pairs = [element["concat"] for found in sets for element in found.get("elem", ())]
    return sorted((IPv4Address(one), IPv4Address(other)) for one, other in pairs)


def port(host: str) -> str:
    """The host's port on the bridge, as nspawn names it (pure)."""
    return f"vb-{host}"


def unplug(place: Place, host: str) -> None:
    """Take the host's port down, so that it can send nothing more, not even a FIN or a reset."""
    run(*inside(place, "ip", "link", "set", port(host), "down"))


def remove_port(place: Place, host: str) -> None:
    """Remove the host's port: the kernel keeps it for a while after the host was killed."""
    succeeds(*inside(place, "ip", "link", "delete", port(host)))  # fails if there is none


def plan_slow(device: str, mbit_per_s: float) -> list[str]:
    """The tc command that limits what a device sends; 0 removes the limit (pure)."""
    if not mbit_per_s:
        return ["tc", "qdisc", "delete", "dev", device, "root"]
    shape = ["tbf", "rate", f"{mbit_per_s:g}mbit", "burst", "64kb", "latency", "200ms"]
    return ["tc", "qdisc", "replace", "dev", device, "root", *shape]


def _ssh_masters(place: Place) -> Iterator[int]:
    """The pids of ssh's master processes in the namespace, which keep shared connections open."""
    for line in run("ip", "netns", "pids", place.name).split():
        try:
            title = Path(f"/proc/{line}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since
        if title.startswith(b"ssh: "):
            yield int(line)
