"""Before a command destroys something: it says what, and somebody has to agree."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from kdist.cli.shared.show import show_time
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.model import TopicPartition

yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation; without a terminal it is needed."
)
out_of_range_option = click.option(
    "--out-of-range",
    is_flag=True,
    help="Go on even if the time is not between a topic's first record and its last.",
)


async def confirm(what: str, *, yes: bool) -> None:
    """Return if `yes`, or once somebody at the terminal agrees that `what` (a clause) happens."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{what}: confirm it with --yes, as there is no terminal to ask at")
    from kdist.cli.shared.line_source import Lines

    click.echo(f"{what}. Type yes to go on: ", nl=False, err=True)
    async for line, *_ in Lines(sys.stdin.buffer).read():  # an interrupt ends it
        if line.strip().lower() == b"yes":
            return
        break
    raise UserError("nothing was changed")


async def require_within(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    time_ms: int,
    *,
    may_be_before: bool = False,
) -> None:
    """`UserError` if a time is after all records of a topic's partitions, or before all."""
    from kdist.client.offsets import list_offsets

    async def at(timestamp_ms: int) -> dict[TopicPartition, tuple[int, int] | None]:
        asked = dict.fromkeys(partitions, timestamp_ms)
        answers = await list_offsets(cluster, asked, is_committed_only=False)
        return {key: each and (each.offset, each.timestamp) for key, each in answers.items()}

    first, found = await at(0), await at(time_ms)
    for topic in dict.fromkeys(each.topic for each in partitions):
        there = {key: each for key, each in first.items() if key.topic == topic and each}
        if there and not any(found[key] for key in there):
            end = f"is later than every record of topic {topic}"
        elif (
            there
            and not may_be_before
            and all(found[key] == each and each[1] > time_ms for key, each in there.items())
        ):
            earliest = min(timestamp for _, timestamp in there.values())
            end = f"is earlier than topic {topic}, which begins at {show_time(earliest)}"
        else:
            continue
        raise UserError(f"{show_time(time_ms)} {end}: if it is meant, give --out-of-range too")
