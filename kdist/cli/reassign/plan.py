"""`kdist reassign plan`: what would go where, what it costs and how long it takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.files import check_new, write_new
from kdist.cli.shared.options import json_option, not_empty, print_json
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.errors import UserError
from kdist.storage.names import some_of

if TYPE_CHECKING:
    from kdist.client.admin.reassignments import Reassignment
    from kdist.client.cluster import Cluster
    from kdist.model import TopicPartition
    from kdist.ops.reassignment.plan import Move, Plan
    from kdist.ops.reassignment.site import Disk, Share, Site

MIB = 1 << 20
throttle_option = click.option(
    "--throttle",
    metavar="MIB_PER_S",
    type=click.IntRange(min=1, max=1 << 20),
    default=50,
    show_default=True,
    help="What a broker may send, and get, for moves.",
)


class Broker(NamedTuple):
    """A broker before and after the plan, and the bytes that it gets and sends.

    `disk` is None if it is down.
    """

    id: int
    disk: Disk | None
    before: Share
    after: Share
    received: int
    sent: int

    def full(self, share: Share) -> float | None:
        if self.disk is None:
            return None
        return share.bytes / self.disk.room_bytes if self.disk.room_bytes else 1.0


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _is_number(_: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):  # which is in any range
        raise click.BadParameter("nan is no number of seconds.", param=parameter)
    return value


_BROKERS: tuple[Field[Broker], ...] = (
    Field("BROKER", lambda each: each.id, "broker", is_number=True),
    Field("HOST", lambda each: each.disk and each.disk.host, "host", lambda host: host or "(down)"),
    Field("RACK", lambda each: each.disk and each.disk.rack, "rack"),
    Field("FULL", lambda each: each.full(each.before), "full_before", _percent, is_number=True),
    Field("AFTER", lambda each: each.full(each.after), "full_after", _percent, is_number=True),
    Field("LEADS", lambda each: each.before.leads, "leads_before", is_number=True),
    Field("AFTER", lambda each: each.after.leads, "leads_after", is_number=True),
    Field("GETS", lambda each: each.received, "received_bytes", show_size, is_number=True),
    Field("SENDS", lambda each: each.sent, "sent_bytes", show_size, is_number=True),
)


@click.command()
@click.argument(
    "topics", metavar="[TOPIC...]", nargs=-1, callback=not_empty, shell_complete=complete_topics
)
@click.option(
    "--drain",
    "drained",
    metavar="BROKER",
    type=click.IntRange(min=0),
    multiple=True,
    help="Empty this broker, even if it is down; may be repeated.",
)
@click.option(
    "--drain-host",
    "drained_hosts",
    metavar="HOST",
    multiple=True,
    callback=not_empty,
    help="Empty all brokers of this host; may be repeated.",
)
@click.option("--drain-dead", is_flag=True, help="Empty all brokers that are down.")
@click.option(
    "--replication-factor",
    metavar="N",
    type=click.IntRange(min=1),
    help="Have so many replicas of the topics named.",
)
@click.option(
    "--only-needed", is_flag=True, help="Move nothing to level disks or to spread leaders."
)
@click.option(
    "--sample",
    metavar="SECONDS",
    type=click.FloatRange(min=0, max=3600),
    callback=_is_number,
    default=5.0,
    show_default=True,
    help="Watch for so long how fast partitions grow, to spread the leaders of those that do.",
)
@throttle_option
@click.option(
    "--output", metavar="FILE", callback=not_empty, help="Write the plan there, for execute."
)
@client_options()
@json_option
def plan(  # noqa: PLR0913 - one for each option
    topics: tuple[str, ...],
    drained: tuple[int, ...],
    drained_hosts: tuple[str, ...],
    drain_dead: bool,
    replication_factor: int | None,
    only_needed: bool,
    sample: float,
    throttle: int,
    output: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Show which partitions would move, and with --output keep that as a plan.

    All disks are made equally full, each in share of its room, with the least bytes copied; then
    leaders are spread. Nothing else than the TOPICs is moved, if any are named. No host has two
    replicas of a partition, and none is over fewer racks than before. What brokers have that are
    down is left there, unless they are drained; then moves that wait for them are planned anew.
    """
    if replication_factor is not None and not topics:
        raise click.UsageError("--replication-factor needs the topics that are to have it.")
    if output is not None:
        check_new(output)

    async def work(cluster: Cluster) -> tuple[Site, Plan]:
        from kdist.client.admin.reassignments import list_partition_reassignments
        from kdist.client.admin.topics import describe_topics
        from kdist.ops.reassignment.plan import Wish, plan_moves
        from kdist.ops.reassignment.site import read_site

        await describe_topics(cluster, topics)  # an error names one that there is not
        moving = await list_partition_reassignments(cluster)
        if not (drained or drain_dead):
            _check_ended(moving)
        site = await read_site(cluster, 0.0 if only_needed else sample, moving)
        emptied = _emptied(site, drained, drained_hosts) | (site.down if drain_dead else set())
        _check_ended(moving, emptied & site.down)
        wish = Wish(
            emptied=emptied,
            factors=dict.fromkeys(topics, replication_factor) if replication_factor else {},
            levels_disks=not only_needed,
            spreads_leaders=not only_needed,
            topics=frozenset(topics) if topics else None,
        )
        return site, plan_moves(site, wish)

    site, made = ask_cluster(clients, work)
    _show(site, made, throttle * MIB, as_json)
    if output is not None:
        from kdist.ops.reassignment.plan import encode_plan

        write_new(output, encode_plan(made.moves))


def _check_ended(
    moving: Mapping[TopicPartition, Reassignment], given_up: Collection[int] = ()
) -> None:
    """`UserError` if moves are under way, but those that wait for brokers that are given up."""
    if left := [each for each, move in moving.items() if not {*move.target} & {*given_up}]:
        count = show_count(len(left), "partition")
        raise UserError(f"{count} moving already: let them arrive, or cancel them, first")


def _emptied(site: Site, drained: tuple[int, ...], hosts: tuple[str, ...]) -> frozenset[int]:
    down = site.down
    on_hosts = {each.broker for each in site.disks.values() if each.host in hosts}
    known = {each.host for each in site.disks.values()}
    for host in hosts:
        if host not in known:
            also = " and brokers that are down, for --drain or --drain-dead" if down else ""
            there = ", ".join(sorted(known))
            raise UserError(f"no broker is on host {host}; there are {there}{also}")
    for broker in drained:
        if broker not in site.disks and broker not in down:
            there = ", ".join(map(str, sorted({*site.disks, *down})))
            raise UserError(
                f"broker {broker} is not alive, nor has it a replica; there are {there}"
            )
    return frozenset({*drained, *on_hosts})


def _show(site: Site, made: Plan, bytes_per_second: int, as_json: bool) -> None:
    from kdist.ops.reassignment.site import Share

    brokers = [
        Broker(
            each,
            site.disks.get(each),
            made.before.get(each, Share()),
            made.after.get(each, Share()),
            made.received.get(each, 0),
            made.sent.get(each, 0),
        )
        for each in sorted({*site.disks, *site.down})
    ]
    seconds = made.seconds(bytes_per_second)
    if as_json:
        print_json(
            {
                "moves": [
                    {
                        "topic": each.partition.topic,
                        "partition": each.partition.partition,
                        "before": each.before,
                        "after": each.after,
                        "bytes": each.moved_bytes,
                    }
                    for each in made.moves
                ],
                "brokers": [json_row(_BROKERS, each) for each in brokers],
                "down": sorted(site.down),
                "leaderless": [each._asdict() for each in made.leaderless],
                "bytes": made.moved_bytes,
                "seconds": round(seconds, 1),
            }
        )
        return
    _say_down(site, made)
    print_rows(_BROKERS, brokers)
    if made.leaderless:
        names = some_of(made.leaderless)
        click.echo(f"{names}: left, as nobody leads them, so that nothing can be copied.")
    click.echo(_summary(made, seconds, bytes_per_second))


def _say_down(site: Site, made: Plan) -> None:
    down = site.down
    if not down:
        return
    there, left = (
        sum(share.replicas for broker, share in shares.items() if broker in down)
        for shares in (made.before, made.after)
    )
    is_one = len(down) == 1
    who = f"{show_count(len(down), 'broker')} {'is' if is_one else 'are'} down"
    whose = f"{'its' if is_one else 'their'} {show_count(there, 'replica')}"
    fate = f"{left} left there; --drain and --drain-dead move them" if left else "all moved"
    click.echo(f"{who} ({some_of(sorted(down))}): of {whose} {fate}.")


def _summary(made: Plan, seconds: float, bytes_per_second: int) -> str:
    """What becomes of how many partitions: each counts once."""
    kinds = Counter(map(_kind_of, made.moves))
    parts = []
    if copied := kinds.pop(_COPIED, 0):
        parts.append(
            f"{show_count(copied, 'partition')} copied, {show_size(made.moved_bytes)} in all,"
            f" {_duration(seconds)} at {show_size(bytes_per_second)}/s a broker"
        )
    parts += [f"{show_count(count, 'partition')} {kind}" for kind, count in sorted(kinds.items())]
    return "; ".join(parts) + "." if parts else "Nothing to move."


_COPIED = "copied"


def _kind_of(move: Move) -> str:
    if move.added:
        return _COPIED
    if len(move.after) < len(move.before):
        return "to fewer replicas"
    is_led_anew = move.after[0] != move.before[0]
    return "to another leader only" if is_led_anew else "to another order only"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "less than a second"
    if seconds < 120:
        return f"about {seconds:.0f} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 120 else f"about {minutes / 60:.1f} h"
