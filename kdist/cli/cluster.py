"""`kdist cluster`: the cluster as a whole: its brokers, its health, its disks, its leaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.confirming import confirm, yes_option
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, print_json
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.cli.shared.topic_arguments import PartitionsParam, TopicPartitions, resolve_partitions
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition

if TYPE_CHECKING:
    from kdist.client.admin.brokers import ClusterView, VersionRange
    from kdist.client.admin.disks import LogDirectory, Replica
    from kdist.client.admin.health import Finding
    from kdist.client.admin.topics import Partition
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


# health


_COLORS = {"bad": "red", "warning": "yellow"}


@cluster.command()
@client_options()
@json_option
def health(clients: Clients, as_json: bool) -> int:
    """Say whether the cluster is well; exit with 1 if something is bad.

    Bad: no controller, a broker that does not answer, a failed log directory, a partition that is
    offline or has fewer in-sync replicas than min.insync.replicas. Warnings: under-replicated
    partitions, leaders that are not the preferred ones, partitions that are being moved, brokers of
    different releases, a volume with less than a tenth free. Replicas that a move adds need not be
    in sync yet.
    """
    from kdist.client.admin.health import examine

    found = ask_cluster(clients, examine)
    is_well = all(each.level != "bad" for each in found)
    if as_json:
        findings = [{**each._asdict(), "items": list(each.items)} for each in found]
        print_json({"is_well": is_well, "findings": findings})
    else:
        for each in found:
            _print(each)
        if not found:
            click.echo("The cluster is well.")
    return 0 if is_well else 1


def _print(each: Finding) -> None:
    click.echo(click.style(f"{each.level:<9}", fg=_COLORS[each.level]) + each.sentence)
    shown = each.items[:10]
    if shown:
        rest = len(each.items) - len(shown)
        more = f", and {show_count(rest, 'other')}" if rest else ""
        click.echo(f"         {', '.join(shown)}{more}")


# disks


_STATES = {Error.BROKER_NOT_AVAILABLE.name: "down", Error.REQUEST_TIMED_OUT.name: "silent"}


class Told(NamedTuple):
    """A log directory of a broker; or None, and why the broker says nothing of its own."""

    broker: int
    directory: LogDirectory | None
    silence: ApiError | None = None

    @property
    def error(self) -> str | None:
        failed = self.silence.error if self.silence else self.directory and self.directory.error
        return failed.name if failed else None

    @property
    def state(self) -> str:
        return "works" if self.error is None else _STATES.get(self.error, self.error)


def _directory(told: Told) -> LogDirectory | None:
    return told.directory


_REPLICAS: tuple[Field[tuple[int, LogDirectory, Replica]], ...] = (
    Field("BROKER", lambda row: row[0], is_number=True),
    Field("PARTITION", lambda row: row[2].partition),
    Field("", lambda row: row[2].partition.topic, "topic"),
    Field("", lambda row: row[2].partition.partition, "partition"),
    Field("SIZE", lambda row: row[2].size_bytes, "size_bytes", show_size, is_number=True),
    Field("LAG", lambda row: row[2].lag, "lag", is_number=True),
    Field("", lambda row: row[2].is_future, "is_future"),
    Field("DIRECTORY", lambda row: row[1].path),
)
_SIZES: tuple[Field[LogDirectory], ...] = (
    Field("REPLICAS", lambda each: len(each.replicas), is_number=True),
    Field("LOGS", lambda each: each.size_bytes, "logs_bytes", show_size, is_number=True),
    Field("VOLUME", lambda each: each.total_bytes, "total_bytes", show_size, is_number=True),
    Field("FREE", lambda each: each.usable_bytes, "usable_bytes", show_size, is_number=True),
)
_DIRECTORIES: tuple[Field[Told], ...] = (
    Field("BROKER", lambda told: told.broker, "broker", is_number=True),
    Field("DIRECTORY", lambda told: told.directory and told.directory.path, "directory"),
    Field("STATE", lambda told: told.state),
    Field("", lambda told: told.error, "error"),
    *(field.of(_directory) for field in _SIZES),
    Field("", lambda told: [json_row(_REPLICAS, each) for each in _replicas(told)], "replicas"),
)


def _replicas(told: Told) -> list[tuple[int, LogDirectory, Replica]]:
    directory = told.directory
    return [(told.broker, directory, each) for each in directory.replicas] if directory else []


@cluster.command()
@click.argument("brokers", metavar="[BROKER...]", type=click.IntRange(min=0), nargs=-1)
@click.option("--replicas", is_flag=True, help="Every replica with its size, the largest first.")
@client_options()
@json_option
def disks(brokers: tuple[int, ...], replicas: bool, clients: Clients, as_json: bool) -> int:
    """Show each broker's log directory: how full its volume is, how much is in its logs.

    LAG is how many records a replica is behind the high watermark. A broker that is down, or that
    does not answer, is shown as such, and the exit status is 1.
    """
    found = ask_cluster(clients, partial(_ask, brokers))
    is_whole = all(told.silence is None for told in found)
    if as_json or not replicas:
        print_rows(_DIRECTORIES, found, as_json=as_json)
    else:
        rows = [each for told in found for each in _replicas(told)]
        rows.sort(key=lambda row: (-row[2].size_bytes, row[0], row[2]))
        print_rows(_REPLICAS, rows, if_none="There are no replicas." if is_whole else "")
        for told in found:
            if told.silence:
                click.echo(f"Broker {told.broker} is {told.state}: its disk is not shown.")
    return 0 if is_whole else 1


async def _ask(brokers: tuple[int, ...], cluster: Cluster) -> list[Told]:
    """What each broker that was named says of its disk, or each that there is."""
    from kdist.client.admin.asking import ask_brokers
    from kdist.client.admin.disks import log_directories
    from kdist.client.admin.health import PATIENCE_S, missing_brokers

    missing = await missing_brokers(cluster)
    down = [each for each in missing if not brokers or each in brokers]
    there = [each for each in brokers if each not in down] if brokers else None
    answers = await ask_brokers(cluster, partial(log_directories, cluster), there, PATIENCE_S)
    for broker in down:
        answers[broker] = ApiError(Error.BROKER_NOT_AVAILABLE, f"broker {broker} is down")
    return [told for broker in sorted(answers) for told in _told(broker, answers[broker])]


def _told(broker: int, answer: list[LogDirectory] | ApiError) -> list[Told]:
    if isinstance(answer, ApiError):
        return [Told(broker, None, answer)]
    return [Told(broker, each) for each in answer]


# elect


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


@cluster.command()
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
