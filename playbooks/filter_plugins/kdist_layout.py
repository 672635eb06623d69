"""Filters that lay out a host: from its disks and groups to brokers' ids, ports and paths (pure).

A broker is a disk. `d03` of host number 12 is broker 1203 on port 9094, its metrics are on 9294,
and its log lies in /data/d03/kdist. A disk that came from another host keeps its identity by
naming `broker` and `port` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Every port of a site. Brokers and mirrors count upwards from theirs: there is room for the 24
# disks of a host and for their metrics, without meeting anything else.
PORTS = {
    "ssh": 22,
    "zookeeper_client": 2181,
    "zookeeper_quorum": 2888,
    "zookeeper_election": 3888,
    "prometheus": 9090,
    "broker": 9092,
    "node_exporter": 9190,  # Debian's own, 9100, is broker d09's port
    "alertmanager": 9193,  # and 9093 is d02's
    "alertmanager_cluster": 9194,  # and 9094 is d03's
    "broker_metrics": 9292,
    "mirror_metrics": 9392,
}
# Which of them a host of a group listens on; "" is every host. Brokers and mirrors are added.
LISTENERS = {
    "": ("ssh", "node_exporter"),
    "zookeeper": ("zookeeper_client", "zookeeper_quorum", "zookeeper_election"),
    "monitor": ("prometheus", "alertmanager", "alertmanager_cluster"),
}
DISKS_PER_HOST_MAX = 99


def kdist_ports(overrides: Mapping[str, int]) -> dict[str, int]:
    """The ports of a site, with those that its inventory has instead."""
    return {name: overrides.get(name, port) for name, port in PORTS.items()}


def kdist_brokers(
    disks: Iterable[Mapping[str, Any]], host_number: int, ports: Mapping[str, int]
) -> list[dict[str, Any]]:
    """One broker for each active disk, in the disks' order."""
    active = (disk for disk in disks if disk.get("state", "active") == "active")
    return [broker(disk, int(host_number), ports) for disk in active]


def broker(disk: Mapping[str, Any], host_number: int, ports: Mapping[str, int]) -> dict[str, Any]:
    """The broker of a disk {id: d01, device, ...}."""
    name = str(disk["id"])
    number = int(name[1:])
    port = int(disk.get("port", int(ports["broker"]) + number - 1))
    mount = f"/data/{name}"
    return {
        "instance": name,
        "id": int(disk.get("broker", host_number * (DISKS_PER_HOST_MAX + 1) + number)),
        "port": port,
        "metrics_port": port - int(ports["broker"]) + int(ports["broker_metrics"]),
        "mount": mount,
        "log_dir": f"{mount}/kdist",
        "device": str(disk["device"]),
    }


def kdist_listeners(
    groups: Iterable[str],
    ports: Mapping[str, int],
    brokers: Iterable[Mapping[str, Any]],
    mirrors: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """[{name, port}]: everything that a host of these groups listens on."""
    found = [
        (name, ports[name])
        for group, names in LISTENERS.items()
        if not group or group in groups
        for name in names
    ]
    if "broker" in groups:
        for each in brokers:
            found.append((f"broker {each['instance']}", each["port"]))
            found.append((f"broker {each['instance']}'s metrics", each["metrics_port"]))
    found += [(f"mirror {each['name']}'s metrics", each["mirror_port"]) for each in mirrors]
    return [{"name": name, "port": int(port)} for name, port in found]


def kdist_bootstrap_servers(hostvars: Mapping[str, Mapping[str, Any]], hosts: Iterable[str]) -> str:
    """`address:port` of every broker of the hosts, joined by commas."""
    return ",".join(
        f"{hostvars[host]['kdist_address']}:{broker['port']}"
        for host in hosts
        for broker in hostvars[host]["kdist_brokers"]
    )


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "kdist_ports": kdist_ports,
            "kdist_brokers": kdist_brokers,
            "kdist_listeners": kdist_listeners,
            "kdist_bootstrap_servers": kdist_bootstrap_servers,
        }
