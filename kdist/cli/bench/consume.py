"""`kdist bench consume`: how fast a topic is read, as batches or record by record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import require_topic
from kdist.cli.shared.options import isolation_option, json_option, not_empty, say_rate
from kdist.cli.shared.progress import Advance, progress
from kdist.cli.shared.throttling import throttling_said
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.consumer.consumer import Consumer

_POLL_S = 1.0


class Read(NamedTuple):
    """What one poll returned: how many records, and the bytes of their values."""

    records: int
    bytes: int


@click.command()
@click.argument("topic", callback=not_empty, shell_complete=complete_topics)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    help="How many to read; by default, all that the topic has at the start.",
)
@click.option("--one-by-one", is_flag=True, help="Read record by record instead of whole batches.")
@isolation_option
@client_options("consumer")
@json_option
def consume(
    topic: str,
    records: int | None,
    one_by_one: bool,
    isolation: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Read a topic from its beginning, without a group, and report the throughput.

    \b
    Examples:
      kdist bench consume load
      kdist bench consume load --records 100000 --one-by-one --json
    """
    from kdist.client.consumer.consumer import Consumer

    count = require_topic(clients, topic)
    partitions = [TopicPartition(topic, number) for number in range(count)]
    settings = clients.settings("consumer", isolation_level=isolation)
    with throttling_said(), Consumer(**settings) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        available = _offset_count(consumer, ends)
        wanted = available if records is None else min(records, available)
        if not wanted:
            raise UserError(f"topic {topic} is empty: `kdist bench produce {topic}` fills it")
        poll = _records if one_by_one else _batches

        def is_over() -> bool:
            consumer.end_offsets(partitions)  # raises if the brokers do not answer
            return all(consumer.position(each) >= end for each, end in ends.items())

        with progress("consume", wanted, is_wanted=not as_json) as advance:
            read, seconds = _run(lambda: poll(consumer), wanted, advance, is_over)
    say_rate(*read, seconds, as_json)


def _offset_count(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> int:
    starts = consumer.beginning_offsets(list(ends))
    return sum(end - starts[each] for each, end in ends.items())


def _records(consumer: Consumer) -> Read:
    found = consumer.poll(_POLL_S)
    return Read(len(found), sum(len(record.value or b"") for record in found))


def _batches(consumer: Consumer) -> Read:
    values = [value for batch in consumer.poll_batches(_POLL_S) for value in batch.values()]
    return Read(len(values), sum(len(value or b"") for value in values))


def _run(
    poll: Callable[[], Read], wanted: int, advance: Advance, is_over: Callable[[], bool]
) -> tuple[Read, float]:
    """Poll until `wanted` records are read, or a poll returns none and all are read.

    The latter ends the run on a compacted topic: `wanted` counts offsets, gaps included. A consumer
    that is throttled may get none for a while.
    """
    clock = SystemClock()
    start_ns = end_ns = clock.monotonic_ns()
    records = size = 0
    while records < wanted:
        read = poll()
        if not read.records:
            if is_over():
                break
            continue
        end_ns = clock.monotonic_ns()
        records += read.records
        size += read.bytes
        advance(read.records)
    return Read(records, size), (end_ns - start_ns) / 1e9
