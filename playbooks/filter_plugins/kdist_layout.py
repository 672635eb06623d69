"""Filters that lay out brokers: from a host's disks to its brokers' ids, ports and paths (pure).

A broker is a disk. `d03` of host number 12 is broker 1203 on port 9094, its metrics are on 9294,
and its log lies in /data/d03/kdist. A disk that came from another host keeps its identity by
naming `broker` and `port` itself. Only active disks have brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

BROKER_PORT_FIRST = 9092
METRICS_PORT_ABOVE = 200
DISKS_PER_HOST_MAX = 99


def kdist_brokers(disks: Iterable[Mapping[str, Any]], host_number: int) -> list[dict[str, Any]]:
    """One broker for each active disk, in the disks' order."""
    active = (disk for disk in disks if disk.get("state", "active") == "active")
    return [broker(disk, int(host_number)) for disk in active]


def broker(disk: Mapping[str, Any], host_number: int) -> dict[str, Any]:
    """The broker of a disk {id: d01, device, ...}."""
    name = str(disk["id"])
    number = int(name[1:])
    port = int(disk.get("port", BROKER_PORT_FIRST + number - 1))
    mount = f"/data/{name}"
    return {
        "instance": name,
        "id": int(disk.get("broker", host_number * (DISKS_PER_HOST_MAX + 1) + number)),
        "port": port,
        "metrics_port": port + METRICS_PORT_ABOVE,
        "mount": mount,
        "log_dir": f"{mount}/kdist",
        "device": str(disk["device"]),
    }


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
            "kdist_brokers": kdist_brokers,
            "kdist_bootstrap_servers": kdist_bootstrap_servers,
        }
