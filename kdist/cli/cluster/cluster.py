"""`kdist cluster`: the cluster as a whole, its brokers, its health, its disks, its leaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.cluster.disks import disks
from kdist.cli.cluster.elect import elect
from kdist.cli.cluster.health import health
from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, print_json
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.errors import ApiError

if TYPE_CHECKING:
    from kdist.client.admin.brokers import ClusterView, VersionRange
    from kdist.client.cluster import Cluster
    from kdist.model import Broker


class Described(NamedTuple):
    """A broker, what it supports or why that is not known, and its share of the partitions."""

    broker: Broker
    is_controller: bool
    versions: Mapping[str, VersionRange] | ApiError | None
    leads: int
    replicas: int

    def newest(self, api: str) -> int | None:
        return self.versions[api].newest if isinstance(self.versions, Mapping) else None


_BROKERS: tuple[Field[Described], ...] = (
    Field("BROKER", lambda each: each.broker.id, "broker", is_number=True),
    Field("ADDRESS", lambda each: f"{each.broker.host}:{each.broker.port}"),
    Field("", lambda each: each.broker.host, "host"),
    Field("", lambda each: each.broker.port, "port"),
    Field("RACK", lambda each: each.broker.rack, "rack"),
    Field("ROLE", lambda each: "controller" if each.is_controller else None),
    Field("LEADS", lambda each: each.leads, "leads", is_number=True),
    Field("REPLICAS", lambda each: each.replicas, "replicas", is_number=True),
    Field("APIS", lambda each: _api_count(each), is_number=True),
    Field("PRODUCE", lambda each: each.newest("Produce"), is_number=True),
    Field("FETCH", lambda each: each.newest("Fetch"), is_number=True),
    Field("", lambda each: _spans(each), "versions"),
    Field("", lambda each: _error(each), "error"),
)


def _api_count(each: Described) -> int | None:
    return len(each.versions) if isinstance(each.versions, Mapping) else None


def _spans(each: Described) -> dict[str, list[int]] | None:
    if not isinstance(each.versions, Mapping):
        return None
    return {api: list(span) for api, span in each.versions.items()}


def _error(each: Described) -> str | None:
    return str(each.versions) if isinstance(each.versions, ApiError) else None


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Describe the cluster, say whether it is well, show its disks, have leaders elected."""


@cluster.command()
@client_options()
@json_option
def describe(clients: Clients, as_json: bool) -> int:
    """Show the cluster's id and its brokers: racks, the controller, leaders and replicas.

    APIS is the number of APIs that a broker supports, PRODUCE and FETCH the newest versions of
    these two. Brokers that differ in them run different releases. Of a broker that is down only
    the number of its replicas is known. The exit status is 1 if a broker that has replicas is down,
    or one does not answer.
    """

    async def work(asked: Cluster) -> tuple[ClusterView, list[Described], dict[int, int]]:
        from kdist.client.admin.brokers import describe_cluster, describe_versions
        from kdist.client.admin.health import PATIENCE_S

        view = await describe_cluster(asked)
        versions = await describe_versions(asked, PATIENCE_S)
        leads, holds = await _shares(asked)
        described = [
            Described(
                each,
                each.id == view.controller,
                versions.get(each.id),
                leads[each.id],
                holds.pop(each.id, 0),
            )
            for each in view.brokers
        ]
        return view, described, dict(sorted(holds.items()))

    view, brokers, down = ask_cluster(clients, work)
    silent = [each.broker.id for each in brokers if _error(each)]
    status = 1 if down or silent else 0
    if as_json:
        print_json(
            {
                "cluster": view.id,
                "controller": view.controller,
                "brokers": [json_row(_BROKERS, each) for each in brokers],
                "down": [*down],
            }
        )
        return status
    count = show_count(len(view.brokers), "broker")
    controller = "no controller" if view.controller is None else f"controller {view.controller}"
    click.echo(f"Cluster {view.id or 'without an id'}: {count}, {controller}")
    print_rows(_BROKERS, brokers, indent=2)
    for broker, replicas in down.items():
        click.echo(f"Broker {broker} is down, and has {show_count(replicas, 'replica')}.")
    for broker in silent:
        click.echo(f"Broker {broker} does not answer.")
    return status


async def _shares(asked: Cluster) -> tuple[Counter[int | None], Counter[int]]:
    """How many partitions each broker leads, and how many replicas it has."""
    from kdist.client.admin.topics import list_topics

    parts = [each for topic in await list_topics(asked) for each in topic.partitions]
    leads = Counter(each.leader for each in parts)
    return leads, Counter(replica for each in parts for replica in each.replicas)


cluster.add_command(health)
cluster.add_command(disks)
cluster.add_command(elect)
