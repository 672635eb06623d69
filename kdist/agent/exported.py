"""The agent's metrics in Prometheus's text format, for the node exporter's collector (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from kdist.agent.smart import DiskHealth
from kdist.metrics.agent import UNKNOWN, AgentMetrics, SmartMetrics, ZooKeeperMetrics
from kdist.metrics.declare import Family
from kdist.metrics.exposition import Exposition


def exported(
    agent: AgentMetrics, health: Iterable[DiskHealth], zookeeper: ZooKeeperMetrics | None
) -> bytes:
    """The file's content; without disks with SMART or a ZooKeeper, it has no samples of these."""
    shown = Exposition()
    shown.add(agent)
    disks = Family(SmartMetrics, "device", "serial")
    for each in health:
        _copy(each, disks[each.device, each.serial])
    shown.add_family(disks)
    if zookeeper is not None:
        shown.add(zookeeper)
    return shown.render()


def _copy(health: DiskHealth, shown: SmartMetrics) -> None:
    for row in SmartMetrics.TABLE:
        value = getattr(health, row.attribute)
        setattr(shown, row.attribute, UNKNOWN if value is None else float(value))
