"""`kdist topics delete-records`: deletes a topic's oldest records before retention does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.confirming import (
    confirm,
    out_of_range_option,
    require_within,
    yes_option,
)
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Field, print_rows
from kdist.cli.shared.times import TIME_FORMS, Time
from kdist.cli.shared.topic_arguments import PartitionsParam, TopicPartitions, resolve_partitions
from kdist.errors import UserError
from kdist.model import NO_OFFSET, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster

_TRIMS: tuple[Field[Trim], ...] = (
    Field("TOPIC", lambda each: each.partition.topic, "topic"),
    Field("PARTITION", lambda each: each.partition.partition, "partition", is_number=True),
    Field("START", lambda each: each.start, is_number=True),
    Field("", lambda each: each.new_start, "start_offset"),
    Field("END", lambda each: each.end, "end_offset", is_number=True),
    Field("NEW START", lambda each: each.new_start, is_number=True),
    Field("OFFSETS", lambda each: each.offsets, "deleted", is_number=True),
    Field("", lambda each: each.is_done, "carried_out"),
)


class Trim(NamedTuple):
    """What is deleted from a partition: the offsets from `start` up to `new_start`, exclusive."""

    partition: TopicPartition
    start: int
    end: int
    new_start: int
    is_done: bool
    is_compacted: bool

    @property
    def offsets(self) -> int:
        return self.new_start - self.start


@click.command("delete-records")
@click.argument(
    "topics",
    metavar="TOPIC[:P,...]...",
    type=PartitionsParam(),
    nargs=-1,
    required=True,
    shell_complete=complete_topics,
)
@click.option("--before-offset", type=click.IntRange(min=0), help="Records before this offset.")
@click.option(
    "--before-time",
    type=Time(),
    help=f"Records before the first one of this time: {TIME_FORMS}.",
)
@click.option("--all", "takes_all", is_flag=True, help="All records.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@out_of_range_option
@yes_option
@client_options()
@json_option
def delete_records(  # noqa: PLR0913 - one for each option
    topics: tuple[TopicPartitions, ...],
    before_offset: int | None,
    before_time: int | None,
    takes_all: bool,
    dry_run: bool,
    out_of_range: bool,
    yes: bool,
    clients: Clients,
    as_json: bool,
) -> None:
    """Delete the oldest records of topics. This cannot be undone.

    The topic stays, and the offsets of later records are not affected. A time after a topic's last
    record is refused without --out-of-range, as all records would go.

    \b
    Examples:
      kdist topics delete-records clicks --before-time 2026-11-01 --dry-run
      kdist topics delete-records clicks:0 --before-offset 4711
    """
    if takes_all + (before_offset is not None) + (before_time is not None) != 1:
        raise click.UsageError("Give one of --before-offset, --before-time and --all.")

    async def work(cluster: Cluster) -> list[Trim]:
        from kdist.client.admin.records import delete_records as delete_before
        from kdist.client.offsets import find_ranges

        partitions = await resolve_partitions(cluster, topics)
        compacted = await _compacted(cluster, {each.topic for each in partitions})
        if before_time is not None and not out_of_range:
            await require_within(cluster, partitions, before_time, may_be_before=True)
        ranges = await find_ranges(cluster, partitions)
        goals = await _goals(cluster, ranges, before_offset, before_time)
        trims = [
            Trim(each, *span, _clamp(goals[each], span), not dry_run, each.topic in compacted)
            for each, span in ranges.items()
        ]
        if not as_json:
            print_rows(_TRIMS, trims, as_json=False)
        wanted = {each.partition: each.new_start for each in trims if each.offsets}
        if wanted and not dry_run:
            await confirm(f"{_total(trims)} will be deleted", yes=yes)
            await delete_before(cluster, wanted)
        return trims

    trims = ask_cluster(clients, work)
    if as_json:
        print_rows(_TRIMS, trims, as_json=True)
    else:
        total = _total(trims)
        click.echo(f"{total.capitalize()} would be deleted." if dry_run else f"Deleted {total}.")


async def _compacted(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Those that are compacted as well; `UserError` for one that may not be deleted from."""
    from kdist.client.admin.settings import describe_topic_configs

    found = set()
    for topic, settings in (await describe_topic_configs(cluster, topics)).items():
        policy = settings["cleanup.policy"].value or ""
        if "delete" not in policy:
            raise UserError(f"topic {topic} has cleanup.policy={policy}, which has no delete")
        if "compact" in policy:
            found.add(topic)
    return found


async def _goals(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, OffsetRange],
    before_offset: int | None,
    before_time: int | None,
) -> Mapping[TopicPartition, int]:
    from kdist.client.offsets import find_offsets

    if before_time is not None:
        return await find_offsets(cluster, list(ranges), before_time)
    if before_offset is None:
        return {each: span.end for each, span in ranges.items()}
    for each, span in ranges.items():
        if before_offset > span.end:
            raise UserError(f"{each} ends at offset {span.end}, before {before_offset}")
    return dict.fromkeys(ranges, before_offset)


def _clamp(goal: int, offsets: OffsetRange) -> int:
    return offsets.end if goal == NO_OFFSET else max(offsets.start, min(goal, offsets.end))


def _total(trims: list[Trim]) -> str:
    """How many records; after compaction there may be fewer than offsets."""
    count = show_count(sum(each.offsets for each in trims), "record")
    return f"up to {count}" if any(each.is_compacted for each in trims) else count
