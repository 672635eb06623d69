"""`kdist bench latency`: the time from a producer's send to a waiting consumer's receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kdist.cli.bench.produce import require_sendable, size_option, started_producer
from kdist.cli.bench.report import show_summary, summarise
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import require_topic
from kdist.cli.shared.options import acks_option, json_option, not_empty, print_json
from kdist.cli.shared.progress import Advance, progress
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.throttling import throttling_said
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.consumer.consumer import Consumer
    from kdist.client.producer.sync import Producer

_WARM_UP = 20  # records sent first and not measured, while connections open and caches fill
_PATIENCE_S = 30.0
_DEFAULTS: dict[str, Any] = {"linger_ms": 0}


class Timed(NamedTuple):
    """Milliseconds from a record's sending to its acknowledgement, and to its consumer."""

    acknowledged: list[float]
    consumed: list[float]


@click.command()
@click.argument("topic", callback=not_empty, shell_complete=complete_topics)
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="How many to send.",
)
@size_option
@acks_option("1", "all")
@client_options("producer", "consumer")
@json_option
def latency(
    topic: str, records: int, size: int, acks: str | None, clients: Clients, as_json: bool
) -> None:
    """Send records one at a time, each once a consumer has received the last, and time them.

    All go to partition 0, and stay there.
    """
    from kdist.client.consumer.consumer import Consumer

    require_topic(clients, topic)
    settings = clients.producer(_DEFAULTS, acks=acks)
    if require_sendable(size, settings).acks == "0":
        raise UserError("acks is 0: without acknowledgements there is nothing to time")
    partition = TopicPartition(topic, 0)
    with (
        throttling_said(),
        started_producer(settings) as producer,
        Consumer(**clients.settings("consumer")) as consumer,
        progress("latency", records, is_wanted=not as_json) as advance,
    ):
        consumer.assign([partition])
        consumer.seek_to_end(partition)
        consumer.position(partition)
        timed = _run(producer, consumer, partition, bytes(size), records, advance)
    _report(timed, size, as_json)


def _run(
    producer: Producer,
    consumer: Consumer,
    partition: TopicPartition,
    value: bytes,
    records: int,
    advance: Advance,
) -> Timed:
    clock = SystemClock()
    timed = Timed([], [])
    for number in range(records + _WARM_UP):
        begun_ns = clock.monotonic_ns()
        sent = producer.send(partition.topic, value, partition=partition.partition)
        offset = sent.result().offset
        acknowledged_ns = clock.monotonic_ns()
        _await_record(consumer, partition, offset)
        if number >= _WARM_UP:
            timed.acknowledged.append((acknowledged_ns - begun_ns) / 1e6)
            timed.consumed.append((clock.monotonic_ns() - begun_ns) / 1e6)
            advance(1)
    return timed


def _await_record(consumer: Consumer, partition: TopicPartition, offset: int) -> None:
    """Poll until the record at `offset` arrives, ignoring those that other producers write."""
    while True:
        found = consumer.poll(_PATIENCE_S)
        if not found:
            raise UserError(
                f"the record at offset {offset} of {partition} was acknowledged, but not received"
                f" within {_PATIENCE_S:g} s"
            )
        if found[-1].offset >= offset:
            return


def _report(timed: Timed, size: int, as_json: bool) -> None:
    acknowledged, consumed = summarise(timed.acknowledged), summarise(timed.consumed)
    if as_json:
        row = {"records": len(timed.consumed), "bytes": size * len(timed.consumed)}
        print_json({**row, "acknowledged_ms": acknowledged, "consumed_ms": consumed})
        return
    click.echo(f"{show_count(len(timed.consumed), 'record')} of {show_size(size)}, one at a time")
    click.echo(f"acknowledged after  {show_summary(acknowledged)}")
    click.echo(f"consumed after      {show_summary(consumed)}")
