"""`kdist cluster`: the cluster as a whole, its brokers, its health, its disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from kdist.cli.cluster.disks import disks
from kdist.cli.cluster.health import health
from kdist.cli.shared.command_group import CommandGroup
from kdist.cli.shared.connecting import ask_cluster, broker_option
from kdist.cli.shared.options import json_option, print_json
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Column, Row, print_table
from kdist.errors import ApiError

if TYPE_CHECKING:
    from kdist.client.admin.brokers import ClusterView, VersionRange
    from kdist.client.cluster import Cluster
    from kdist.model import Broker

_BROKERS = (
    Column("BROKER", is_number=True),
    Column("ADDRESS"),
    Column("RACK"),
    Column("ROLE"),
    Column("LEADS", is_number=True),
    Column("REPLICAS", is_number=True),
    Column("APIS", is_number=True),
    Column("PRODUCE", is_number=True),
    Column("FETCH", is_number=True),
)
Versions = Mapping[int, "Mapping[str, VersionRange] | ApiError"]
Shares = Mapping[int, tuple[int, int]]  # partitions led and replicas held, by broker


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Describe the cluster, say whether it is well, show what is on its disks."""


@cluster.command()
@broker_option
@json_option
def describe(broker: str, as_json: bool) -> None:
    """Show the cluster's id and its brokers: racks, the controller, leaders and replicas.

    APIS is the number of APIs that a broker supports, PRODUCE and FETCH the newest versions of
    these two. Brokers that differ in them run different releases.
    """

    async def work(asked: Cluster) -> tuple[ClusterView, Versions, Shares]:
        from kdist.client.admin.brokers import describe_cluster, describe_versions
        from kdist.client.admin.health import PATIENCE_S

        view = await describe_cluster(asked)
        return view, await describe_versions(asked, PATIENCE_S), await _shares(asked)

    view, versions, shares = ask_cluster(broker, work)
    if as_json:
        print_json(
            {
                "cluster": view.id,
                "controller": view.controller,
                "brokers": [_json(each, versions, shares) for each in view.brokers],
            }
        )
        return
    count = show_count(len(view.brokers), "broker")
    controller = "no controller" if view.controller is None else f"controller {view.controller}"
    click.echo(f"Cluster {view.id or 'without an id'}: {count}, {controller}")
    rows = (Row(_cells(each, view, versions, shares)) for each in view.brokers)
    print_table(_BROKERS, rows, indent=2)


async def _shares(asked: Cluster) -> Shares:
    """How many partitions each broker leads, and how many replicas it has."""
    from kdist.client.admin.topics import list_topics

    parts = [each for topic in await list_topics(asked) for each in topic.partitions]
    leads = Counter(each.leader for each in parts)
    holds = Counter(replica for each in parts for replica in each.replicas)
    return {broker: (leads[broker], holds[broker]) for broker in asked.brokers}


def _cells(each: Broker, view: ClusterView, versions: Versions, shares: Shares) -> tuple[str, ...]:
    found = versions.get(each.id)
    speaks: tuple[str, ...] = ("-", "-", "-")
    if isinstance(found, Mapping):
        speaks = (str(len(found)), *(str(found[api].newest) for api in ("Produce", "Fetch")))
    leads, replicas = shares.get(each.id, (0, 0))
    role = "controller" if each.id == view.controller else "-"
    address = f"{each.host}:{each.port}"
    return str(each.id), address, each.rack or "-", role, str(leads), str(replicas), *speaks


def _json(each: Broker, versions: Versions, shares: Shares) -> dict[str, object]:
    found = versions.get(each.id)
    leads, replicas = shares.get(each.id, (0, 0))
    speaks = (
        {api: list(span) for api, span in found.items()} if isinstance(found, Mapping) else None
    )
    return {
        "broker": each.id,
        "host": each.host,
        "port": each.port,
        "rack": each.rack,
        "leads": leads,
        "replicas": replicas,
        "versions": speaks,
        "error": str(found) if isinstance(found, ApiError) else None,
    }


cluster.add_command(health)
cluster.add_command(disks)
