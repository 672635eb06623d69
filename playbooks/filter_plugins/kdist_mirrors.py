"""The filter that lays out mirrors: from the site's flows to a datacenter's processes (pure).

A flow is a process on each mirror host of its target. Ports are by the place of a flow's name among
all flows of the site, so that they are the same on all hosts and no two flows share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

MIRROR_PORT_FIRST = 9392


def kdist_mirrors(flows: Iterable[Mapping[str, Any]], datacenter: str) -> list[dict[str, Any]]:
    """[{name, source, topics, prefix, mirror_port}] of the flows that lead to a datacenter.

    `topics` is text as a .properties file wants it: patterns between commas, backslashes twice.
    """
    named = sorted(flows, key=lambda flow: str(flow["name"]))
    return [
        {
            "name": str(flow["name"]),
            "source": str(flow["source"]),
            "topics": ",".join(flow.get("topics") or ()).replace("\\", "\\\\"),
            "prefix": f"{flow['source']}." if flow.get("policy") == "prefix" else "",
            "mirror_port": MIRROR_PORT_FIRST + number,
        }
        for number, flow in enumerate(named)
        if str(flow["target"]) == datacenter
    ]


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kdist_mirrors": kdist_mirrors}
