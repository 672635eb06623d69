"""The agent's metrics in Prometheus's text format, for the node exporter's collector (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kdist.agent.data_disks import whole_device
from kdist.agent.disks import SeenDisk
from kdist.agent.smart import DiskHealth
from kdist.agent.wanted import WantedBroker
from kdist.metrics.agent import (
    UNKNOWN,
    AgentMetrics,
    AskedDiskMetrics,
    CanaryMetrics,
    DataDiskMetrics,
    NotAppliedMetrics,
    SmartMetrics,
    WantedMetrics,
    ZooKeeperMetrics,
)
from kdist.metrics.declare import Family
from kdist.metrics.exposition import Exposition


class Seen(NamedTuple):
    """What the agent has seen of its host; of what there is not, there are no samples."""

    disks: Iterable[SeenDisk] = ()
    zookeeper: ZooKeeperMetrics | None = None
    data_disks: Mapping[str, str] = {}  # by device
    wanted: Iterable[WantedBroker] = ()
    not_applied: Mapping[str, int] = {}  # by role
    canary: Family[CanaryMetrics] | None = None


def exported(agent: AgentMetrics, seen: Seen) -> bytes:
    """The file's content."""
    shown = Exposition()
    shown.add(agent)
    disks = Family(SmartMetrics, "device", "serial", "disk")
    asked = Family(AskedDiskMetrics, "device", "disk")
    for each in seen.disks:
        device = whole_device(each.device)
        name = seen.data_disks.get(device, "")
        asked[device, name].answer_age_seconds = each.answer_age_s
        asked[device, name].timeouts = each.timeouts
        if each.health is not None:
            _copy(each.health, disks[device, each.health.serial, name])
    shown.add_family(disks)
    shown.add_family(asked)
    data_disks = Family(DataDiskMetrics, "device", "disk")
    for item in seen.data_disks.items():
        data_disks[item].info = 1
    shown.add_family(data_disks)
    wanted = Family(WantedMetrics, *WantedBroker._fields)
    for broker in seen.wanted:
        wanted[broker].info = 1
    shown.add_family(wanted)
    not_applied = Family(NotAppliedMetrics, "role")
    for role, count in seen.not_applied.items():
        not_applied[role,].count = count
    shown.add_family(not_applied)
    if seen.canary is not None:
        shown.add_family(seen.canary)
    if seen.zookeeper is not None:
        shown.add(seen.zookeeper)
    return shown.render()


def _copy(health: DiskHealth, shown: SmartMetrics) -> None:
    for row in SmartMetrics.TABLE:
        value = getattr(health, row.attribute)
        setattr(shown, row.attribute, UNKNOWN if value is None else float(value))
