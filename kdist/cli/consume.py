"""`kdist consume`: a topic's records, as lines or JSON, from where one says, until one says."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.connecting import ask_cluster, broker_option
from kdist.cli.log_find import Time
from kdist.cli.options import json_option, print_json
from kdist.cli.show import show_count
from kdist.errors import UserError
from kdist.model import NO_OFFSET, TopicPartition
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.client.fetching import Fetched, Reader
    from kdist.records.batch import BatchHeader
    from kdist.records.record import Record

_COMMIT_NS = 5_000_000_000


class Start(NamedTuple):
    """Where to begin in each partition; with nothing said, at the group's offset or at the end."""

    from_beginning: bool
    offset: int | None
    timestamp: int | None
    group: str | None

    @property
    def is_given(self) -> bool:
        """Whether one of the options that name a place was given."""
        return self.from_beginning or self.offset is not None or self.timestamp is not None


@click.command()
@click.argument("topic")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest record there is.")
@click.option("--offset", type=click.IntRange(min=0), help="Begin at this offset.")
@click.option(
    "--time",
    "timestamp",
    type=Time(),
    help="Begin with the first record of this time: milliseconds since 1970, or ISO 8601 (in UTC"
    " unless it names a zone).",
)
@click.option("--partition", type=click.IntRange(min=0), help="Read this partition only.")
@click.option("--group", metavar="NAME", help="Go on from this group's offsets, and commit there.")
@click.option("--max", "limit", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("--until-end", is_flag=True, help="Stop where the topic ended at the start.")
@click.option("--keys", is_flag=True, help="Put each record's key and a tab before its value.")
@broker_option
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
    keys: bool,
    broker: str,
    as_json: bool,
) -> None:
    """Show a topic's records as they come, until an interrupt.

    Begins at the end of the topic unless told otherwise. Values are written as they are, a line
    each, a null as nothing; --json shows offset, time, key and headers too, and tells null from
    empty. Within a partition records are in order.

    --group keeps committed offsets only: it joins no group and shares no partitions, and is
    refused while the group has members. It begins where the group stopped, if no other place is
    given, else at the beginning or the end. What is shown is committed every 5 s and at the end.

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
        from kdist.cli.unread import ended_when_unread
        from kdist.client.fetching import Reader

        partitions = await _partitions(cluster, topic, partition)
        await _require_idle(cluster, group)
        offsets = await _start_offsets(cluster, partitions, start)
        reader = Reader(cluster, offsets)
        output.positions.update(offsets)
        ends = await _ends(cluster, partitions) if until_end else {}
        with ended_when_unread():
            await _read(cluster, reader, ends, output, group)

    if limit != 0:
        ask_cluster(broker, work)


async def _partitions(
    cluster: Cluster, topic: str, partition: int | None
) -> tuple[TopicPartition, ...]:
    count = len((await cluster.topic(topic)).partitions)
    if partition is not None and partition >= count:
        raise UserError(
            f"topic {topic} has no partition {partition}: it has"
            f" {show_count(count, 'partition')}, from 0"
        )
    numbers: Iterable[int] = range(count) if partition is None else (partition,)
    return tuple(TopicPartition(topic, number) for number in numbers)


async def _require_idle(cluster: Cluster, group: str | None) -> None:
    """A group that has members commits by itself; to step in between would be a mistake."""
    if group is None:
        return
    from kdist.client.admin import describe_group

    described, _ = await describe_group(cluster, group)
    if described.members:
        members = show_count(len(described.members), "member")
        raise UserError(f"group {group} has {members}: its offsets are theirs to commit")


async def _start_offsets(
    cluster: Cluster, partitions: tuple[TopicPartition, ...], start: Start
) -> dict[TopicPartition, int]:
    from kdist.client.positions import committed_offsets, find_offsets
    from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP

    if start.offset is not None:
        return await _checked(cluster, partitions, start.offset)
    if start.timestamp is not None:
        found = await find_offsets(cluster, partitions, start.timestamp)
        ends = await _ends(cluster, partitions)
        return {each: ends[each] if at == NO_OFFSET else at for each, at in found.items()}
    oldest = await find_offsets(cluster, partitions, EARLIEST_TIMESTAMP)
    fallback = oldest if start.from_beginning else await _ends(cluster, partitions)
    if start.group is None:
        return fallback
    committed = await committed_offsets(cluster, start.group)
    # What was committed long ago may have been removed since.
    return {
        each: max(committed[each], oldest[each]) if each in committed else fallback[each]
        for each in partitions
    }


async def _checked(
    cluster: Cluster, partitions: tuple[TopicPartition, ...], offset: int
) -> dict[TopicPartition, int]:
    """The offset for each; `UserError` with the range of a partition that it is outside of."""
    from kdist.client.positions import find_offsets
    from kdist.protocol.list_offsets import EARLIEST_TIMESTAMP

    starts = await find_offsets(cluster, partitions, EARLIEST_TIMESTAMP)
    ends = await _ends(cluster, partitions)
    for each in partitions:
        if not starts[each] <= offset <= ends[each]:
            raise UserError(
                f"{each} has no offset {offset}: it has those from {starts[each]} to before"
                f" {ends[each]}"
            )
    return dict.fromkeys(partitions, offset)


async def _ends(
    cluster: Cluster, partitions: tuple[TopicPartition, ...]
) -> dict[TopicPartition, int]:
    from kdist.client.positions import find_offsets
    from kdist.protocol.list_offsets import LATEST_TIMESTAMP

    return await find_offsets(cluster, partitions, LATEST_TIMESTAMP)


async def _read(
    cluster: Cluster,
    reader: Reader,
    ends: dict[TopicPartition, int],
    output: Output,
    group: str | None,
) -> None:
    """Show what is read until the limit or all ends are reached; commit what was shown."""
    committer = Committer(cluster, group, output.positions)
    for each, end in ends.items():
        if reader.positions[each] >= end:
            reader.leave(each)
    try:
        async with contextlib.aclosing(reader.read()) as fetches:
            async for fetched in fetches:
                each = fetched.partition
                is_full = output.show(fetched, ends.get(each))
                if is_full:
                    break
                if each in ends and fetched.next_offset >= ends[each]:
                    reader.leave(each)
                await committer.maybe_commit()
    finally:
        await committer.commit()


class Output:
    """Shows records, up to a limit. Owner: the command."""

    def __init__(self, topic: str, as_json: bool, keys: bool, limit: int | None) -> None:
        self.positions: dict[TopicPartition, int] = {}
        """Behind what was shown, or where it began, by partition."""
        self._topic = topic
        self._as_json = as_json
        self._keys = keys
        self._left = limit
        self._stream = sys.stdout.buffer

    def show(self, fetched: Fetched, end_offset: int | None) -> bool:
        """Show the records before `end_offset`; whether the limit is reached with them."""
        records = fetched.records
        if end_offset is not None:
            records = [each for each in records if each[1].offset < end_offset]
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        if self._as_json:
            self._show_json(fetched.partition, records)
        else:
            self._stream.write(b"".join([self._line(record) for _, record in records]))
            self._stream.flush()
        if self._left == 0:
            if records:
                self.positions[fetched.partition] = records[-1][1].offset + 1
            return True
        self.positions[fetched.partition] = fetched.next_offset
        return False

    def _line(self, record: Record) -> bytes:
        value = record.value or b""
        return b"%b\t%b\n" % (record.key or b"", value) if self._keys else value + b"\n"

    def _show_json(
        self, partition: TopicPartition, records: list[tuple[BatchHeader, Record]]
    ) -> None:
        from kdist.cli.record_lines import json_record

        for header, record in records:
            where = {"topic": partition.topic, "partition": partition.partition}
            print_json({**where, **json_record(header, record)})


class Committer:
    """Commits what was shown, for a group; without one it does nothing. Owner: the command."""

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
        """Commit if it is some seconds ago."""
        if self._clock.monotonic_ns() - self._committed_ns >= _COMMIT_NS:
            await self.commit()

    async def commit(self) -> None:
        """Commit what is new."""
        from kdist.client.positions import commit_offsets

        if self._group is None or self._positions == self._committed:
            return
        await commit_offsets(self._cluster, self._group, self._positions)
        self._committed = dict(self._positions)
        self._committed_ns = self._clock.monotonic_ns()
