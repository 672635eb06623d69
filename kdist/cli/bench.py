"""`kdist bench`: throughput of producing and consuming, and end-to-end latency."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import require_topic, throttling_said
from kdist.cli.shared.options import (
    acks_option,
    codec_option,
    isolation_option,
    json_option,
    not_empty,
    print_json,
    say_rate,
)
from kdist.cli.shared.progress import Advance, progress
from kdist.cli.shared.show import show_count, show_size
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.consumer.consumer import Consumer
    from kdist.client.producer.settings import ProducerSettings
    from kdist.client.producer.sync import Producer

topic_argument = click.argument("topic", callback=not_empty, shell_complete=complete_topics)
size_option = click.option(
    "--size",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Size of each record in bytes.",
)


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure producing, consuming, and end-to-end latency, with kdist's own clients.

    Use topics created for this: the records stay in them. If brokers and client share one machine,
    the figures say little about a cluster.
    """


# produce


_PAYLOADS = 1_000  # distinct values, so that a batch does not compress to almost nothing
_PAYLOAD_BYTES = 64 << 20  # the distinct values together: there are fewer of large ones
_LETTERS = bytes(65 + byte % 26 for byte in range(256))
_SAMPLES_MAX = 20_000  # acknowledgements timed: timing every one would slow down the producer
_CHUNK = 500
_CLOSE_S = 2.0  # for what an interrupt or error leaves


class Load(NamedTuple):
    """What to send; `rate` is in records per second, None for as fast as possible."""

    topic: str
    records: int
    size: int
    rate: int | None
    is_bulk: bool


@bench.command()
@topic_argument
@click.option(
    "--records",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="How many to write.",
)
@size_option
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    help="Records per second; by default, as many as possible.",
)
@click.option("--bulk", is_flag=True, help="Send many records per call, instead of one.")
@acks_option("0", "1", "all")
@codec_option
@client_options("producer")
@json_option
def produce(  # noqa: PLR0913 - one for each option
    topic: str,
    records: int,
    size: int,
    rate: int | None,
    bulk: bool,
    acks: str | None,
    codec: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Write records of random letters to a topic, and report throughput and latency.

    Latency is the time from send to acknowledgement, measured on up to 20,000 of the records.
    Without --rate the producer's queue is always full, and most of the latency is time spent in it.

    \b
    Examples:
      kdist bench produce load --records 1000000 --size 100
      kdist bench produce load --rate 1000 --acks all --json
    """
    require_topic(clients, topic)
    load = Load(topic, records, size, rate, bulk)
    settings = clients.settings("producer", acks=acks, compression_type=codec)
    require_sendable(size, settings)
    with (
        throttling_said(),
        started_producer(settings) as producer,
        progress("produce", records, is_wanted=not as_json) as advance,
    ):
        run = Run(producer, load)
        for count in run.chunks():
            advance(count)
        run.finish()
    _report_sent(load, run, as_json)


@contextmanager
def started_producer(settings: Mapping[str, Any]) -> Iterator[Producer]:
    """A producer, closed in the end; soon after an interrupt or error, as nobody needs the rest."""
    from kdist.client.producer.sync import Producer

    producer, is_done = Producer(**settings), False
    try:
        yield producer
        is_done = True
    finally:
        producer.close(None if is_done else _CLOSE_S)


def require_sendable(size: int, settings: Mapping[str, Any]) -> ProducerSettings:
    """The settings, read; `UserError` for records larger than the producer accepts.

    Called before the records are built.
    """
    from kdist.client.producer.settings import read_settings

    found = read_settings(settings).plain
    limit = found.max_request_size
    if size > limit:
        raise UserError(f"records of {size} bytes are larger than max_request_size, {limit} bytes")
    return found


class Run:
    """Sends one load. Owner: the command; the producer's thread appends the latencies."""

    def __init__(self, producer: Producer, load: Load) -> None:
        from kdist.runtime.process import system_rng

        letters = system_rng()
        self.latencies_ms: list[float] = []
        self.failures: list[BaseException] = []
        self.seconds = 0.0
        self._producer = producer
        self._load = load
        self._clock = SystemClock()
        different = max(1, min(_PAYLOADS, load.records, _PAYLOAD_BYTES // max(1, load.size)))
        made = [letters.randbytes(load.size).translate(_LETTERS) for _ in range(different)]
        self._payloads = (made * _PAYLOADS)[:_PAYLOADS]
        self._every = max(1, load.records // _SAMPLES_MAX)
        self._start_ns = self._clock.monotonic_ns()

    def chunks(self) -> Iterator[int]:
        """Send all records, yielding the size of each chunk once it is sent."""
        load, sent = self._load, 0
        chunk = _CHUNK if load.rate is None else max(1, min(_CHUNK, load.rate // 100))
        self._start_ns = self._clock.monotonic_ns()
        while sent < load.records:
            if load.rate is not None:
                self._wait_until(sent / load.rate)
            count = min(chunk, load.records - sent)
            (self._send_bulk if load.is_bulk else self._send_each)(sent, count)
            sent += count
            yield count

    def finish(self) -> None:
        self._producer.flush()
        self.seconds = (self._clock.monotonic_ns() - self._start_ns) / 1e9

    def _wait_until(self, due_s: float) -> None:
        left_s = due_s - (self._clock.monotonic_ns() - self._start_ns) / 1e9
        if left_s > 0:
            threading.Event().wait(left_s)

    def _send_each(self, start: int, count: int) -> None:
        topic, payloads, send = self._load.topic, self._payloads, self._producer.send
        for number in range(start, start + count):
            sent = send(topic, payloads[number % _PAYLOADS])
            if number % self._every == 0:
                self._time(sent)

    def _send_bulk(self, start: int, count: int) -> None:
        first = start % _PAYLOADS
        values = (self._payloads * 2)[first : first + count]
        self._time(self._producer.send_many(self._load.topic, values))

    def _time(self, sent: Any) -> None:
        begun_ns = self._clock.monotonic_ns()

        def note(done: Any) -> None:
            error = done.exception()
            if error is not None:
                self.failures.append(error)
            self.latencies_ms.append((self._clock.monotonic_ns() - begun_ns) / 1e6)

        sent.add_done_callback(note)


def _report_sent(load: Load, run: Run, as_json: bool) -> None:
    if run.failures:
        raise run.failures[0]
    summary = summarise(run.latencies_ms)
    total, size = load.records * load.size, f"of {show_size(load.size)}"
    say_rate(load.records, total, run.seconds, as_json, size, latency_ms=summary)
    if not as_json:
        click.echo(f"acknowledged after {show_summary(summary)}")


# consume


_POLL_S = 1.0


class Read(NamedTuple):
    """What one poll returned: how many records, and the bytes of their values."""

    records: int
    bytes: int


@bench.command()
@topic_argument
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
            read, seconds = _read_all(lambda: poll(consumer), wanted, advance, is_over)
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


def _read_all(
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


# latency


_WARM_UP = 20  # records sent first and not measured, while connections open and caches fill
_PATIENCE_S = 30.0
_DEFAULTS: dict[str, Any] = {"linger_ms": 0}


class Timed(NamedTuple):
    """Milliseconds from a record's sending to its acknowledgement, and to its consumer."""

    acknowledged: list[float]
    consumed: list[float]


@bench.command()
@topic_argument
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
        timed = _time_each(producer, consumer, partition, bytes(size), records, advance)
    _report_timed(timed, size, as_json)


def _time_each(
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


def _report_timed(timed: Timed, size: int, as_json: bool) -> None:
    acknowledged, consumed = summarise(timed.acknowledged), summarise(timed.consumed)
    if as_json:
        row = {"records": len(timed.consumed), "bytes": size * len(timed.consumed)}
        print_json({**row, "acknowledged_ms": acknowledged, "consumed_ms": consumed})
        return
    click.echo(f"{show_count(len(timed.consumed), 'record')} of {show_size(size)}, one at a time")
    click.echo(f"acknowledged after  {show_summary(acknowledged)}")
    click.echo(f"consumed after      {show_summary(consumed)}")


# Latencies as percentiles, as a mean hides the slow ones


_SHOWN = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def summarise(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles (nearest rank) and maximum, in ms; empty for no latencies."""
    if not latencies_ms:
        return {}
    ranked = sorted(latencies_ms)
    last = len(ranked) - 1
    found = {"mean": sum(ranked) / len(ranked)}
    for name, share in _SHOWN.items():
        found[name] = ranked[min(last, int(share * len(ranked)))]
    found["max"] = ranked[-1]
    return {name: round(value, 3) for name, value in found.items()}


def show_summary(summary: dict[str, float]) -> str:
    """`mean 1.2 ms, p50 1.1 ms, ...`."""
    return ", ".join(f"{name} {value:,.2f} ms" for name, value in summary.items())
