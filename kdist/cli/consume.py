"""`kdist consume`: prints a topic's records as lines or JSON, from a given start to a given end."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_groups
from kdist.cli.shared.connecting import (
    ask_cluster,
    check_partition,
    require_in_range,
    require_no_members,
)
from kdist.cli.shared.options import isolation_option, json_option, not_empty, print_json
from kdist.cli.shared.times import TIME_FORMS, Time
from kdist.cli.shared.topic_arguments import topic_argument
from kdist.model import NO_OFFSET, TopicPartition
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.client.consumer.aio import Consumer
    from kdist.client.consumer.batch import Batch
    from kdist.records.record import Record

_DEFAULTS: dict[str, Any] = {
    "auto_offset_reset": "none",  # starts are explicit: an offset that is gone is an error
    "default_api_timeout_ms": 30_000,  # half the default: a person is waiting
}
_POLL_S = 1.0
_COMMIT_NS = 5_000_000_000
_SILENCE_NS = 30_000_000_000


class Start(NamedTuple):
    """Where to begin in each partition; by default at the group's offset, or at the end."""

    from_beginning: bool
    offset: int | None
    timestamp: int | None
    group: str | None


@click.command()
@topic_argument
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest record there is.")
@click.option("--offset", type=click.IntRange(min=0), help="Begin at this offset.")
@click.option(
    "--time",
    "timestamp",
    type=Time(),
    help=f"Begin with the first record of this time: {TIME_FORMS}.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Read this partition only.")
@click.option(
    "--group",
    metavar="NAME",
    callback=not_empty,
    shell_complete=complete_groups,
    help="Start from this group's committed offsets, and commit for it.",
)
@click.option("--max", "limit", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option(
    "--until-end", is_flag=True, help="Stop at the end that the topic has when the command starts."
)
@isolation_option
@click.option("--keys", is_flag=True, help="Put each record's key and a tab before its value.")
@client_options("consumer")
@json_option
def consume(  # noqa: PLR0913 - one for each option
    topic: str,
    from_beginning: bool,
    offset: int | None,
    timestamp: int | None,
    partition: int | None,
    group: str | None,
    limit: int | None,
    until_end: bool,
    isolation: str | None,
    keys: bool,
    clients: Clients,
    as_json: bool,
) -> None:
    """Show a topic's records as they arrive, until an interrupt.

    Begins at the end of the topic unless told otherwise. Values are written as they are, one per
    line, a null as an empty line. --json also shows offset, time, key and headers, and
    distinguishes null from empty. Within a partition records are in order.

    --group reads and commits the group's offsets without joining it: the partitions are not shared,
    and the command is refused while the group has members. Unless --offset or --time is given,
    partitions start at the committed offset; those without one start at the end, or with
    --from-beginning at the beginning. The position is committed every 5 s and on exit.

    \b
    Examples:
      kdist consume clicks --from-beginning --max 10
      kdist consume clicks --time 2026-11-20T11:40 --until-end --json
      kdist consume clicks --group audit --from-beginning --until-end
    """
    start = Start(from_beginning and offset is None and timestamp is None, offset, timestamp, group)
    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise click.UsageError("Give one of --from-beginning, --offset and --time.")
    output = Output(topic, as_json, keys, limit)

    async def work(cluster: Cluster) -> None:
        from kdist.cli.shared.unread import ended_when_unread
        from kdist.client.consumer.aio import Consumer

        partitions = await _partitions(cluster, topic, partition)
        if group is not None:
            await require_no_members(cluster, group)
        offsets = await _start_offsets(cluster, partitions, start)
        output.positions.update(offsets)
        settings = clients.settings("consumer", _DEFAULTS, isolation_level=isolation)
        async with Consumer(**settings) as consumer:
            consumer.assign(partitions)
            for each, at in offsets.items():
                consumer.seek(each, at)
            ends = await consumer.end_offsets(partitions) if until_end else {}
            with ended_when_unread():
                await _read(consumer, ends, output, Committer(cluster, group, output.positions))

    if limit != 0:
        ask_cluster(clients, work)


async def _partitions(
    cluster: Cluster, topic: str, partition: int | None
) -> tuple[TopicPartition, ...]:
    count = len((await cluster.topic(topic)).partitions)
    check_partition(topic, partition, count)
    numbers: Iterable[int] = range(count) if partition is None else (partition,)
    return tuple(TopicPartition(topic, number) for number in numbers)


async def _start_offsets(
    cluster: Cluster, partitions: tuple[TopicPartition, ...], start: Start
) -> dict[TopicPartition, int]:
    from kdist.client.admin.offsets import list_group_offsets
    from kdist.client.offsets import find_offsets
    from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP

    if start.offset is not None:
        offsets = dict.fromkeys(partitions, start.offset)
        await require_in_range(cluster, offsets)
        return offsets
    if start.timestamp is not None:
        found = await find_offsets(cluster, partitions, start.timestamp)
        ends = await _ends(cluster, partitions)
        return {each: ends[each] if at == NO_OFFSET else at for each, at in found.items()}
    oldest = await find_offsets(cluster, partitions, EARLIEST_TIMESTAMP)
    fallback = oldest if start.from_beginning else await _ends(cluster, partitions)
    if start.group is None:
        return fallback
    committed = await list_group_offsets(cluster, start.group)
    # Retention may have deleted the records at an old committed offset.
    return {
        each: max(committed[each], oldest[each]) if each in committed else fallback[each]
        for each in partitions
    }


async def _ends(
    cluster: Cluster, partitions: tuple[TopicPartition, ...]
) -> dict[TopicPartition, int]:
    from kdist.client.offsets import find_offsets
    from kdist.protocol.list_offsets import LATEST_TIMESTAMP

    return await find_offsets(cluster, partitions, LATEST_TIMESTAMP)


async def _read(
    consumer: Consumer, ends: dict[TopicPartition, int], output: Output, committer: Committer
) -> None:
    """Show records until the limit or all ends are reached; commit the position."""
    left = {each for each, end in ends.items() if output.positions[each] < end}
    silence = Silence(consumer)
    try:
        while left or not ends:
            batches = await consumer.poll_batches(_POLL_S)
            for batch in batches:
                if output.show(batch, ends.get(batch.partition)):
                    return
            for each in sorted(left):
                if await consumer.position(each) >= ends[each]:
                    output.positions[each] = ends[each]  # control records may follow the last one
                    consumer.pause(each)
                    left.discard(each)
            await silence.check(has_records=bool(batches))
            await committer.maybe_commit()
    finally:
        await committer.commit()


class Silence:
    """Tells a topic without new records from brokers that are gone. Owner: the command."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._clock = SystemClock()
        self._since_ns = self._clock.monotonic_ns()

    async def check(self, *, has_records: bool) -> None:
        """After 30 s without records ask the brokers, and raise the error if they do not answer."""
        now_ns = self._clock.monotonic_ns()
        if has_records:
            self._since_ns = now_ns
        elif now_ns - self._since_ns >= _SILENCE_NS:
            await self._consumer.end_offsets(self._consumer.assignment())
            self._since_ns = self._clock.monotonic_ns()


class Output:
    """Shows records, up to a limit. Owner: the command."""

    def __init__(self, topic: str, as_json: bool, keys: bool, limit: int | None) -> None:
        self.positions: dict[TopicPartition, int] = {}
        """The next offset to show, by partition."""
        self._topic = topic
        self._as_json = as_json
        self._keys = keys
        self._left = limit
        self._stream = sys.stdout.buffer

    def show(self, batch: Batch, end_offset: int | None) -> bool:
        """Show the records before `end_offset`; whether that reaches the limit."""
        records = batch.raw_records()
        if end_offset is not None:
            records = [each for each in records if each.offset < end_offset]
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        if self._as_json:
            self._show_json(batch, records)
        else:
            self._stream.write(b"".join(map(self._line, records)))
            self._stream.flush()
        is_full = self._left == 0
        if records:
            is_cut = is_full or end_offset is not None
            self.positions[batch.partition] = records[-1].offset + 1 if is_cut else batch.end
        return is_full

    def _line(self, record: Record) -> bytes:
        value = record.value or b""
        return b"%b\t%b\n" % (record.key or b"", value) if self._keys else value + b"\n"

    def _show_json(self, batch: Batch, records: Iterable[Record]) -> None:
        from kdist.cli.shared.record_lines import json_record

        for record in records:
            where = {"topic": batch.partition.topic, "partition": batch.partition.partition}
            print_json({**where, **json_record(batch.header, record)})


class Committer:
    """Commits `positions` for a group; without a group it does nothing. Owner: the command."""

    def __init__(
        self, cluster: Cluster, group: str | None, positions: dict[TopicPartition, int]
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._positions = positions
        self._committed: dict[TopicPartition, int] = {}
        self._clock = SystemClock()
        self._committed_ns = self._clock.monotonic_ns()

    async def maybe_commit(self) -> None:
        """Commit if the last commit was at least 5 s ago."""
        if self._clock.monotonic_ns() - self._committed_ns >= _COMMIT_NS:
            await self.commit()

    async def commit(self) -> None:
        """Commit if a position has changed since the last commit."""
        from kdist.client.admin.offsets import alter_group_offsets

        if self._group is None or self._positions == self._committed:
            return
        await alter_group_offsets(self._cluster, self._group, self._positions)
        self._committed = dict(self._positions)
        self._committed_ns = self._clock.monotonic_ns()
