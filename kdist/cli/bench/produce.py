"""`kdist bench produce`: records per second, and the latency of acknowledgements."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kdist.cli.bench.report import show_summary, summarise
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import require_topic
from kdist.cli.shared.options import acks_option, codec_option, json_option, not_empty, say_rate
from kdist.cli.shared.progress import progress
from kdist.cli.shared.show import show_size
from kdist.cli.shared.throttling import throttling_said
from kdist.errors import UserError
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.producer.settings import ProducerSettings
    from kdist.client.producer.sync import Producer

_PAYLOADS = 1_000  # distinct values, so that a batch does not compress to almost nothing
_PAYLOAD_BYTES = 64 << 20  # the distinct values together: there are fewer of large ones
_LETTERS = bytes(65 + byte % 26 for byte in range(256))
_SAMPLES_MAX = 20_000  # acknowledgements timed: timing every one would slow down the producer
_CHUNK = 500
_CLOSE_S = 2.0  # for what an interrupt or error leaves

size_option = click.option(
    "--size",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Size of each record in bytes.",
)


class Load(NamedTuple):
    """What to send; `rate` is in records per second, None for as fast as possible."""

    topic: str
    records: int
    size: int
    rate: int | None
    is_bulk: bool


@click.command()
@click.argument("topic", callback=not_empty, shell_complete=complete_topics)
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
    _report(load, run, as_json)


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


def _report(load: Load, run: Run, as_json: bool) -> None:
    if run.failures:
        raise run.failures[0]
    summary = summarise(run.latencies_ms)
    total, size = load.records * load.size, f"of {show_size(load.size)}"
    say_rate(load.records, total, run.seconds, as_json, size, latency_ms=summary)
    if not as_json:
        click.echo(f"acknowledged after {show_summary(summary)}")
