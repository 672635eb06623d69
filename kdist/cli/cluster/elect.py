"""`kdist cluster elect`: preferred leaders, or by an operator's order any where nobody leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.confirming import confirm, yes_option
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Field, print_rows
from kdist.cli.shared.topic_arguments import PartitionsParam, TopicPartitions, resolve_partitions
from kdist.errors import ApiError
from kdist.model import TopicPartition

if TYPE_CHECKING:
    from kdist.client.admin.topics import Partition
    from kdist.client.cluster import Cluster

_ELECTED: tuple[Field[Elected], ...] = (
    Field("TOPIC", lambda each: each.partition.topic, "topic"),
    Field("PARTITION", lambda each: each.partition.partition, "partition", is_number=True),
    Field("PREFERRED", lambda each: each.preferred, "preferred", is_number=True),
    Field("LEADER", lambda each: each.leader, "leader", is_number=True),
    Field("OUTCOME", lambda each: each.told),
    Field("", lambda each: each.outcome is True, "elected"),
    Field("", lambda each: each.error and each.error.error.name, "error"),
)


class Elected(NamedTuple):
    """A partition after the election: True if it has another leader, False if none was needed.

    None if nothing was asked of the cluster.
    """

    partition: TopicPartition
    preferred: int
    leader: int | None
    outcome: bool | ApiError | None

    @property
    def error(self) -> ApiError | None:
        return self.outcome if isinstance(self.outcome, ApiError) else None

    @property
    def told(self) -> str:
        if isinstance(self.outcome, ApiError):
            return self.outcome.detail
        return {True: "elected", False: "not needed", None: "would be elected"}[self.outcome]


@click.command()
@click.argument(
    "topics",
    metavar="[TOPIC[:P,...]...]",
    type=PartitionsParam(),
    nargs=-1,
    shell_complete=complete_topics,
)
@click.option(
    "--unclean",
    is_flag=True,
    help="Where nobody leads, elect any replica that is alive. What it lacks is lost.",
)
@click.option(
    "--replaced",
    metavar="BROKER",
    type=click.IntRange(min=0),
    help="With --unclean: only partitions that nobody but this broker was in sync with, whose disk "
    "was replaced.",
)
@click.option("--dry-run", is_flag=True, help="Show which need it, and elect nobody.")
@yes_option
@client_options()
@json_option
def elect(
    topics: tuple[TopicPartitions, ...],
    unclean: bool,
    replaced: int | None,
    dry_run: bool,
    yes: bool,
    clients: Clients,
    as_json: bool,
) -> None:
    """Have partitions led by their preferred replicas: all, or those named.

    Brokers get their leaders back by themselves after a while; this does it now. An unclean
    election loses records, and is to be confirmed: first try to bring back a broker that is in the
    ISR.

    \b
    Examples:
      kdist cluster elect
      kdist cluster elect --unclean clicks:0 --dry-run
      kdist cluster elect --unclean --replaced 201
    """
    if replaced is not None and not unclean:
        raise click.UsageError("--replaced needs --unclean.")

    async def work(cluster: Cluster) -> list[Elected]:
        named = await resolve_partitions(cluster, topics) if topics else None
        wanted = await _needing(cluster, named, is_unclean=unclean, replaced=replaced)
        outcomes: Mapping[TopicPartition, bool | ApiError | None] = dict.fromkeys(wanted)
        if not dry_run:
            if named is not None and replaced is None:
                wanted = named  # the controller says which needed none
            if unclean and wanted:
                where = ", ".join(map(str, wanted))
                await confirm(f"what the elected replica of {where} lacks will be lost", yes=yes)
            outcomes = await _carry_out(cluster, wanted, is_unclean=unclean)
        known = await _partitions(cluster)
        # A topic may have been deleted since.
        there = ((each, outcome) for each, outcome in outcomes.items() if each in known)
        return [_elected(each, known[each], outcome) for each, outcome in there]

    rows = ask_cluster(clients, work)
    print_rows(_ELECTED, rows, as_json=as_json, if_none="No partition needs an election.")
    if any(each.error for each in rows):
        raise SystemExit(1)
    if rows and not as_json and not dry_run:
        count = sum(each.outcome is True for each in rows)
        click.echo(f"Elected leaders of {show_count(count, 'partition')}.")


async def _needing(
    cluster: Cluster,
    named: list[TopicPartition] | None,
    *,
    is_unclean: bool,
    replaced: int | None,
) -> list[TopicPartition]:
    """Those of the named partitions that need an election; of all, if none is named."""
    known = await _partitions(cluster)
    wanted = list(known) if named is None else named
    if replaced is not None:
        wanted = [each for each in wanted if known[each].isr == (replaced,)]
    if is_unclean:
        return [each for each in wanted if known[each].leader is None]
    return [
        each
        for each in wanted
        if known[each].leader not in (None, known[each].replicas[0])
        # One that a move adds need not be in sync yet, and is elected in the end.
        and (named is not None or known[each].replicas[0] not in known[each].adding)
    ]


async def _partitions(cluster: Cluster) -> dict[TopicPartition, Partition]:
    from kdist.client.admin.reassignments import with_moves
    from kdist.client.admin.topics import list_topics

    return {
        TopicPartition(topic.name, each.number): each
        for topic in await with_moves(cluster, await list_topics(cluster))
        for each in topic.partitions
    }


async def _carry_out(
    cluster: Cluster, wanted: list[TopicPartition], *, is_unclean: bool
) -> Mapping[TopicPartition, bool | ApiError]:
    from kdist.client.admin.elections import elect_leaders
    from kdist.client.admin.outcomes import SomeFailed

    if not wanted:
        return {}
    try:
        return await elect_leaders(cluster, wanted, is_unclean=is_unclean)
    except SomeFailed as some:
        return dict(sorted({**some.done, **some.failed}.items()))


def _elected(
    partition: TopicPartition, found: Partition, outcome: bool | ApiError | None
) -> Elected:
    return Elected(partition, found.replicas[0], found.leader, outcome)
