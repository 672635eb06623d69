"""`kdist mirror status`, `seek` and `release`: ask a mirror's clusters, and leave decisions there.

`seek` commits a position that overrides the one in the target's log; `release` marks a topic's
origin, after which it is its cluster's own. A flow back to that origin sends only what is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import click

from kdist.cli.shared.connecting import require_in_range
from kdist.cli.shared.options import print_json
from kdist.cli.shared.show import show_count, show_error, show_size
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.client.cluster import Cluster, cluster_at, did_you_mean, parse_addresses
from kdist.client.offsets import TIMESTAMPS, find_offsets
from kdist.config.mirror import Flow, MirrorConfig
from kdist.errors import KdistError, UserError
from kdist.mirror.copying import count_partitions
from kdist.mirror.ends import security_of_ends
from kdist.mirror.lag import Lag
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.seeking import Sought, seek
from kdist.mirror.status import FlowStatus, PartitionStatus, flow_status
from kdist.model import TopicPartition, read_digits
from kdist.network.client import ClientSettings
from kdist.network.client_security import ClientSecurity
from kdist.runtime.clock import SystemClock

T = TypeVar("T")
Row = tuple[FlowStatus, PartitionStatus]

_RETRY_MS = 5_000
_CHECK_S = 3.0


def _of(row: Row, value: Callable[[Lag], T]) -> T | None:
    """A value of the partition's lag; None if that is unknown."""
    return None if row[1].lag is None else value(row[1].lag)


_PARTITIONS: tuple[Field[Row], ...] = (
    Field("FLOW", lambda row: row[0].name),
    Field("SOURCE", lambda row: row[1].source),
    Field("", lambda row: row[1].source.topic, "topic"),
    Field("", lambda row: row[1].source.partition, "partition"),
    Field("TARGET", lambda row: row[1].target),
    Field("", lambda row: row[1].target.topic, "target_topic"),
    Field("POSITION", lambda row: row[1].position, "position", is_number=True),
    Field("END", lambda row: row[1].end, "end", is_number=True),
    Field(
        "RECORDS BEHIND",
        lambda row: _of(row, lambda lag: lag.records),
        "lag_records",
        is_number=True,
    ),
    Field(
        "ABOUT",
        lambda row: _of(row, lambda lag: int(lag.bytes_about)),
        "lag_bytes",
        show_size,
        is_number=True,
    ),
    Field("SECONDS", lambda row: _of(row, lambda lag: f"{lag.seconds:.1f}"), is_number=True),
    Field("", lambda row: _of(row, lambda lag: round(lag.seconds, 3)), "lag_seconds"),
    Field("", lambda row: row[1].lost, "lost_records"),
    Field("", lambda row: row[1].stopped, "stopped"),
    Field("", lambda row: row[1].unknown, "unknown"),
)


def show_status(config: MirrorConfig, name: str | None, *, as_json: bool) -> None:
    """Print the flows' status; then `UserError` for the flows whose clusters did not answer."""
    flows = config.flows if name is None else (named_flow(config, name),)
    now_ms = SystemClock().now_ms()
    found: list[FlowStatus] = []
    failed: list[str] = []
    for flow in flows:
        try:
            found.append(_asked(flow, now_ms))
        except KdistError as error:
            failed.append(f"flow {flow.name}: {show_error(error)}")
    if as_json:
        for each in found:
            print_json(_as_json(each))
    else:
        print_status(found)
    failed += [
        f"flow {each.name}: {show_count(count, 'partition')} of the source did not answer"
        for each in found
        if (count := sum(row.unknown is not None for row in each.partitions))
    ]
    if failed:
        raise UserError("\n".join(failed))


def print_status(found: Sequence[FlowStatus]) -> None:
    """Print the partitions as a table, and below it what somebody should know of their flows."""
    rows = ((each, row) for each in found for row in each.partitions)
    print_rows(_PARTITIONS, rows, below=lambda row: _below(row[1]))
    for each in found:
        for topic, reason in each.held.items():
            what = "is mirrored in part" if topic in each.in_part else "is not mirrored"
            click.echo(f"{each.name}: topic {topic} {what}: {reason}")
        for topic, difference in sorted(each.differing.items()):
            click.echo(f"{each.name}: topic {topic} differs from its copy: {difference}")
        for pattern in each.unmatched if each.partitions else ():
            click.echo(f"{each.name}: the pattern {pattern} matches no topic of the source")
        click.echo(verdict(each))


def verdict(found: FlowStatus) -> str:
    """How a flow is, in a sentence."""
    if not found.partitions:
        return f"{found.name}: there is no topic to mirror in the source."
    behind = sum(row.lag.records for row in found.partitions if row.lag)
    stopped = sum(row.stopped is not None for row in found.partitions)
    unknown = sum(row.unknown is not None for row in found.partitions)
    said = [f"is {show_count(behind, 'record')} behind"] if behind else []
    said += [f"has {show_count(stopped, 'stopped partition')}"] if stopped else []
    said += [f"has {show_count(unknown, 'partition')} of unknown lag"] if unknown else []
    return f"{found.name} {' and '.join(said) or 'is up to date'}."


def _asked(flow: Flow, now_ms: int) -> FlowStatus:
    return with_clusters(flow, lambda source, target: flow_status(flow, source, target, now_ms))


def unmatched_patterns(flow: Flow) -> tuple[str, ...]:
    """The flow's patterns that match no topic of the source; none if that does not answer soon.

    `UserError` if connections cannot be secured as the file says.
    """
    security = security_of_ends(flow)

    async def ask() -> tuple[str, ...]:
        source = parse_addresses(flow.settings.source)
        client = ClientSettings("kdist-mirror-check", security=security.source)
        with cluster_at(source, client, 0) as cluster:
            async with asyncio.timeout(_CHECK_S):
                return flow.unmatched(await count_partitions(cluster))

    try:
        return asyncio.run(ask())
    except (KdistError, TimeoutError):
        return ()


def named_flow(config: MirrorConfig, name: str) -> Flow:
    """The flow of this name; `UserError`, which suggests the nearest name, if there is none."""
    flow = config.flow(name)
    if flow is None:
        hint = did_you_mean(name, [each.name for each in config.flows])
        raise UserError(f"the file has no flow {name}{hint}")
    return flow


def with_clusters(flow: Flow, work: Callable[[Cluster, Cluster], Awaitable[T]]) -> T:
    """Run `work` with the flow's source and target, and return its result."""

    async def run() -> T:
        ends, security = flow.settings, security_of_ends(flow)
        with (
            _cluster(ends.source, security.source) as source,
            _cluster(ends.target, security.target) as target,
        ):
            return await work(source, target)

    return asyncio.run(run())


def _cluster(addresses: str, security: ClientSecurity | None) -> AbstractContextManager[Cluster]:
    client = ClientSettings("kdist-mirror-status", security=security)
    return cluster_at(parse_addresses(addresses), client, _RETRY_MS)


def _below(each: PartitionStatus) -> Iterable[str]:
    if each.lost:
        yield f"    {show_count(each.lost, 'record')} were lost before they were mirrored"
    if each.unknown is not None:
        yield f"    its leader in the source does not answer: {each.unknown}"
    if each.stopped is not None:
        yield f"    stopped: {each.stopped}"


def _as_json(found: FlowStatus) -> dict[str, Any]:
    return {
        "flow": found.name,
        "held_topics": found.held,
        "differing_topics": found.differing,
        "unmatched_patterns": found.unmatched,
        "partitions": [json_row(_PARTITIONS, (found, each)) for each in found.partitions],
    }


def seek_to(config: MirrorConfig, name: str, what: tuple[str, int | None], to: str) -> None:
    """Commit the position, and print where the mirror will go on. `UserError`, `ApiError`."""
    flow = named_flow(config, name)
    place = read_digits(to)
    if to not in TIMESTAMPS and place is None:
        raise UserError(f"--to is {to!r}, but must be an offset, earliest or latest")
    topic, number = what

    async def commit(source: Cluster, target: Cluster) -> tuple[dict[TopicPartition, int], Sought]:
        count = len((await source.topic(topic)).partitions)
        if not flow.wants(topic):
            raise UserError(f"flow {name} does not mirror topic {topic}")
        if number is not None and not 0 <= number < count:
            raise UserError(f"{topic} has partitions 0 to {count - 1}, and no {number}")
        wanted = [
            TopicPartition(topic, each) for each in (range(count) if number is None else (number,))
        ]
        if place is None:
            timestamp = TIMESTAMPS[to]
            offsets = await find_offsets(source, wanted, timestamp, is_committed_only=True)
        else:
            offsets = dict.fromkeys(wanted, place)
            await require_in_range(source, offsets, is_committed_only=True)
        return offsets, await seek(flow, source, target, offsets, SystemClock().now_ms())

    sought, found = with_clusters(flow, commit)
    for partition, offset in sorted(found.offsets.items()):
        passed = ""
        if offset > sought[partition]:
            passed = passed_over(partition, sought[partition], found)
        click.echo(f"{partition} goes on from offset {offset}{passed}.")


def passed_over(partition: TopicPartition, start: int, found: Sought) -> str:
    """What becomes of the records from `start` to where a partition goes on."""
    if partition.topic not in found.recreated:
        return ": its copy was mirrored up to there, and takes nothing from before"
    return (
        f", without those from {start} on: {partition.topic} was recreated, and its copy takes none"
        " of its records before that. To mirror them, too, stop the mirror, delete the copy, and"
        " seek again"
    )


def release_topic(config: MirrorConfig, name: str, topic: str) -> None:
    """Make a mirrored topic of the flow's target the target's own. `UserError`, `ApiError`."""

    async def release(_: Cluster, target: Cluster) -> None:
        origins = await read_origins(target)
        if topic not in origins:
            hint = did_you_mean(topic, origins)
            raise UserError(f"the target has no mirrored topic {topic}{hint}")
        released = origins[topic]._replace(is_released=True)
        await write_origins(target, {topic: released}, SystemClock().now_ms())

    with_clusters(named_flow(config, name), release)
    click.echo(f"{topic} is the target's own.")
