"""`kdist mirror seek` and `release`: store an operator's decision where the mirrors find it.

`seek` commits a position that overrides the one in the target's log; `release` marks a topic's
origin, after which it is its cluster's own. A flow back to that origin sends only what is new.
"""

from __future__ import annotations

import click

from kdist.cli.mirror.status import named_flow, with_clusters
from kdist.cli.shared.connecting import require_in_range
from kdist.client.cluster import Cluster, did_you_mean
from kdist.client.offsets import TIMESTAMPS, find_offsets
from kdist.config.mirror import MirrorConfig
from kdist.errors import UserError
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.seeking import Sought, seek
from kdist.model import TopicPartition, read_digits
from kdist.runtime.clock import SystemClock


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
