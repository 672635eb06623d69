"""The filter that lays out mirrors: from the site's flows to a datacenter's processes (pure).

A flow is a process on each mirror host of its target. Its port follows from its name alone: it is
the same on all hosts, and flows that come or go do not change it. Where two names lead to one port,
which the inventory's check tells, one of the flows names a `port` itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

PORTS = 500


def port_of(flow: Mapping[str, Any], first: int) -> int:
    """The port of a flow's `/metrics` and `/health`."""
    by_name = first + zlib.crc32(str(flow["name"]).encode()) % PORTS
    return int(flow.get("port", by_name))


def kdist_mirrors(
    flows: Iterable[Mapping[str, Any]], datacenter: str, ports: Mapping[str, int]
) -> list[dict[str, Any]]:
    """[{name, source, topics, prefix, mirror_port}] of the flows that lead to a datacenter.

    `topics` is text as a .properties file wants it: patterns between commas, backslashes twice.
    """
    return [
        {
            "name": str(flow["name"]),
            "source": str(flow["source"]),
            "topics": ",".join(flow.get("topics") or ()).replace("\\", "\\\\"),
            "prefix": f"{flow['source']}." if flow.get("policy") == "prefix" else "",
            "mirror_port": port_of(flow, int(ports["mirror_metrics"])),
        }
        for flow in sorted(flows, key=lambda flow: str(flow["name"]))
        if str(flow["target"]) == datacenter
    ]


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kdist_mirrors": kdist_mirrors}
