"""The filters that derive a host's packet filter rules from the groups (pure).

One row of MATRIX is one kind of listener: on the hosts of which group, on which ports, for whom.
What is in no row is not filtered at all, ssh above all.

A host that leaves the inventory or a group does not stop what it runs. As long as it does, the
rules before are kept for it: its brokers still need ZooKeeper, and its ports are not opened to all.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]

# name, the group that listens ("" is every host), ports by their names in kdist_ports or by a key
# of kdist_brokers or kdist_mirrors, and for whom: see `Around`.
MATRIX = (
    ("ZooKeeper for its cluster", "zookeeper", ("zookeeper_client",), "cluster"),
    ("ZooKeeper's ensemble", "zookeeper", ("zookeeper_quorum", "zookeeper_election"), "ensemble"),
    ("brokers", "broker", ("port",), "clients"),
    ("brokers' metrics", "broker", ("metrics_port",), "monitors"),
    ("mirrors' metrics", "mirror", ("mirror_port",), "monitors"),
    ("node exporter", "", ("node_exporter",), "monitors"),
    ("monitoring", "monitor", ("prometheus", "alertmanager"), "all monitors"),
    ("Alertmanagers' cluster", "monitor", ("alertmanager_cluster",), "all monitors"),
)
# Those of them that are listened on with UDP too.
UDP_TOO = {"alertmanager_cluster"}


@dataclass(frozen=True)
class Around:
    """A host's surroundings: who the rows of MATRIX speak of, as addresses; None is anyone."""

    hostvars: Mapping[str, Values]
    groups: Mapping[str, Iterable[str]]
    host: str
    clients: list[str]
    admins: list[str]

    def addresses(self, *groups: str) -> list[str]:
        """Of the hosts that are in all the groups."""
        inside = set(self.groups["all"]).intersection(*(self.groups.get(g, ()) for g in groups))
        return [str(self.hostvars[host]["kdist_address"]) for host in inside]

    def sources(self, whom: str) -> list[str] | None:
        mine = str(self.hostvars[self.host]["kdist_datacenter"])
        if whom == "clients":  # mirrors and gateways of other datacenters too
            return [*self.addresses(), *self.clients] if self.clients else None
        groups = {
            "cluster": [mine],
            "ensemble": [mine, "zookeeper"],
            "monitors": [mine, "monitor"],
            "all monitors": ["monitor"],
        }
        return self.addresses(*groups[whom])


def kdist_firewall_rules(
    hostvars: Mapping[str, Values],
    groups: Mapping[str, Iterable[str]],
    host: str,
    clients: list[str],
    admins: list[str],
) -> list[dict[str, Any]]:
    """[{name, ports, protocols, ipv4, ipv6}] for a host; `anyone` where all may come."""
    around = Around(hostvars, groups, host, clients, admins)
    rules = []
    for name, group, keys, whom in MATRIX:
        if group and host not in groups.get(group, ()):
            continue
        if ports := ports_of(hostvars[host], keys):
            protocols = ["tcp", "udp"] if UDP_TOO.issuperset(keys) else ["tcp"]
            told = {"name": name, "ports": ports, "protocols": protocols}
            rules.append(told | allowed(around, whom))
    return rules


def ports_of(values: Values, keys: Iterable[str]) -> list[int]:
    fixed = [values["kdist_ports"][key] for key in keys if key in values["kdist_ports"]]
    brokers = [b[key] for key in keys for b in values["kdist_brokers"] if key in b]
    mirrors = [m[key] for key in keys for m in values.get("kdist_mirrors", ()) if key in m]
    return sorted({int(port) for port in [*fixed, *brokers, *mirrors]})


def allowed(around: Around, whom: str) -> dict[str, Any]:
    """The addresses of who may come, by family; what a network among them holds is left out."""
    sources = around.sources(whom)
    if sources is None:
        return {"anyone": True, "ipv4": [], "ipv6": []}
    networks = [ipaddress.ip_network(source) for source in [*sources, *around.admins]]
    v4 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv6Network))
    return {"anyone": False, "ipv4": [plain(n) for n in v4], "ipv6": [plain(n) for n in v6]}


def kdist_firewall_kept(
    rules: Iterable[Values],
    hosts: Mapping[str, str],
    former: Values,
    sockets: Iterable[str],
) -> dict[str, Any]:
    """{rules, hosts, notices}: the rules with what is still in use of the `former` ones.

    `hosts` are the inventory's addresses by name, `former` what this returned in the last run, and
    `sockets` what `ss -Htan` prints.
    """
    listening, peers = sockets_in_use(sockets)
    kept = [{**rule, "ipv4": list(rule["ipv4"])} for rule in rules]
    known, notices = dict(hosts), []
    left = {n: a for n, a in former.get("hosts", {}).items() if a not in hosts.values()}
    for rule in kept if left else ():
        for name, address in left.items():
            ports = [port for port in rule["ports"] if address in peers.get(port, ())]
            if ports:
                known[name] = address
                notices.append(
                    f"{name} ({address}) has left the inventory, and its services go on: it is "
                    f"connected to {rule['name']} here, and still let in"
                )
                if not rule["anyone"]:
                    rule["ipv4"].append(address)
    covered = {port for rule in kept for port in rule["ports"]}
    for rule in former.get("rules", ()):
        if ports := [port for port in rule["ports"] if port in listening - covered]:
            kept.append({**rule, "ports": ports})
            notices.append(
                f"{rule['name']}: something listens on port {', '.join(map(str, ports))}, which "
                "nothing here should by the inventory; the rule for it is kept"
            )
    return {"rules": kept, "hosts": known, "notices": notices}


def sockets_in_use(lines: Iterable[str]) -> tuple[set[int], dict[int, set[str]]]:
    """The ports that are listened on, and the addresses that are connected to each port."""
    listening: set[int] = set()
    peers: dict[int, set[str]] = {}
    for line in lines:
        state, _, _, local, peer, *_ = line.split()
        port = int(local.rpartition(":")[2])
        if state == "LISTEN":
            listening.add(port)
        else:
            address = peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:")
            peers.setdefault(port, set()).add(address)
    return listening, peers


def plain(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    """A network of one address as that address."""
    return str(network.network_address) if network.num_addresses == 1 else str(network)


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "kdist_firewall_rules": kdist_firewall_rules,
            "kdist_firewall_kept": kdist_firewall_kept,
        }
