"""`kdist produce`: writes lines from standard input or a file to a topic, each as a record."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster, check_partition, count_partitions
from kdist.cli.shared.files import complete_files
from kdist.cli.shared.options import acks_option, codec_option, json_option, not_empty, say_rate
from kdist.cli.shared.show import show_count, show_error, show_size
from kdist.cli.shared.topic_arguments import topic_argument
from kdist.errors import KdistError, UserError
from kdist.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from kdist.cli.shared.line_source import Lines
    from kdist.client.cluster import Cluster
    from kdist.client.producer.asynchronous import AsyncProducer
    from kdist.client.producer.results import SentMany

_DEFAULTS: dict[str, Any] = {
    "delivery_timeout_ms": 30_000,  # shorter than the default: a person is waiting
    "max_request_size": 1 << 25,  # leaves the limit on records to the topic
    "buffer_memory": 1 << 26,
}
_CLOSE_S = 2.0  # for what an interrupt or error leaves; after success nothing is left to deliver
_IN_FLIGHT_MAX = 16  # chunks of lines
_PROGRESS_NS = 200_000_000


@click.command()
@topic_argument
@click.option(
    "--file",
    "path",
    metavar="FILE",
    callback=not_empty,
    shell_complete=complete_files,
    help="Read this instead of standard input.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="The text between key and value in each line; without it there are no keys.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@codec_option
@acks_option("0", "1", "all")
@client_options("producer")
@json_option
def produce(  # noqa: PLR0913 - one for each option
    topic: str,
    path: str | None,
    key_separator: str | None,
    partition: int | None,
    codec: str | None,
    acks: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Write lines to a topic, each as a record, and say how many there were.

    Records with a key go to the partition that Java's producer would choose; those without fill a
    batch of one partition, then of another. With --acks all, each is written exactly once, even if
    connections break.

    \b
    Examples:
      echo hello | kdist produce clicks
      kdist produce clicks --file clicks.tsv --key-separator '\\t' --codec zstd
    """
    separator = None if key_separator is None else _unescaped(key_separator)
    from asyncio import CancelledError

    from kdist.cli.shared.line_source import Lines
    from kdist.runtime.disk import open_stream

    source = Lines(open_stream(path) if path else sys.stdin.buffer)
    clock = SystemClock()
    start_ns = clock.monotonic_ns()

    async def work(cluster: Cluster) -> Sending:
        check_partition(topic, partition, await count_partitions(cluster, topic))
        settings = clients.settings("producer", _DEFAULTS, acks=acks, compression_type=codec)
        if partition is not None:
            settings["partitioner"] = lambda _key, _count: partition
        from kdist.client.producer.asynchronous import AsyncProducer

        producer = await AsyncProducer(**settings).start()
        sending = Sending(producer, topic, separator)
        progress = Progress(clock, _shows_progress(source))
        try:
            async for lines in source.read():
                await sending.send(lines)
                progress.show(sending)
            await sending.finish()
        except CancelledError:
            progress.clear()
            click.echo(f"kdist: interrupted; written: {await sending.abort()}", err=True)
            raise
        except (KdistError, OSError) as error:
            written = await sending.abort()
            raise UserError(f"{show_error(error).rstrip('.')}; written: {written}") from None
        finally:
            progress.clear()
            await producer.close(_CLOSE_S)
        return sending

    done = ask_cluster(clients, work)
    say_rate(done.records, done.bytes, (clock.monotonic_ns() - start_ns) / 1e9, as_json)


def _unescaped(text: str) -> bytes:
    if not text:
        raise click.BadParameter("it is empty.", param_hint="'--key-separator'")
    return text.replace("\\t", "\t").encode(errors="surrogateescape")  # any bytes


def _shows_progress(source: Lines) -> bool:
    """Whether standard error is a terminal, and nobody is typing the lines."""
    return sys.stderr.isatty() and not source.is_terminal


class Sending:
    """Sends lines to a topic, several chunks in flight at a time. Owner: the command.

    `records` and `bytes` count what is acknowledged.
    """

    def __init__(self, producer: AsyncProducer, topic: str, separator: bytes | None) -> None:
        self.records = 0
        self.bytes = 0
        self._producer = producer
        self._topic = topic
        self._separator = separator
        self._sent = 0
        self._in_flight: deque[tuple[SentMany, Sequence[bytes]]] = deque()

    async def send(self, lines: Sequence[bytes]) -> None:
        """Send the lines; returns before all of them are acknowledged. `ApiError`."""
        keys, values = await self._split(lines)
        many = await self._producer.send_many(self._topic, values, keys)
        self._sent += len(lines)
        self._in_flight.append((many, lines))
        await self._settle(_IN_FLIGHT_MAX)

    async def finish(self) -> None:
        """Wait until everything is acknowledged."""
        await self._settle(0)

    async def abort(self) -> str:
        """Close the producer; how many records were written, as `2 records`.

        That includes the records of a chunk of which only others failed.
        """
        await self._producer.close(_CLOSE_S)
        failed = (count for many, _ in self._in_flight for _, count, _ in many.failures())
        written = self.records + sum(many.count for many, _ in self._in_flight) - sum(failed)
        return show_count(written, "record")

    async def _settle(self, chunks_max: int) -> None:
        """Count what is acknowledged; wait until at most `chunks_max` chunks are in flight."""
        waiting = self._in_flight
        while len(waiting) > chunks_max or (waiting and waiting[0][0].done()):
            many, lines = waiting[0]
            await many
            waiting.popleft()
            self.records += len(lines)
            self.bytes += sum(map(len, lines))

    async def _split(
        self, lines: Sequence[bytes]
    ) -> tuple[Sequence[bytes] | None, Sequence[bytes]]:
        """Keys and values; None for the keys if there is no separator.

        `UserError` for a line without the separator, once all lines before it are acknowledged.
        """
        if self._separator is None:
            return None, lines
        parted = [line.partition(self._separator) for line in lines]
        for index, (_, found, _) in enumerate(parted):
            if not found:
                await self.finish()
                separator = self._separator.decode(errors="replace")
                number = self._sent + index + 1
                raise UserError(f"line {number} has no {separator!r} between key and value")
        return [key for key, _, _ in parted], [value for _, _, value in parted]


class Progress:
    """A line on the terminal with the records written so far; nothing if it is not wanted."""

    def __init__(self, clock: Clock, is_wanted: bool) -> None:
        self._clock = clock
        self._is_wanted = is_wanted
        self._shown_ns = 0

    def show(self, sending: Sending) -> None:
        """Update the line, at most five times a second."""
        now_ns = self._clock.monotonic_ns()
        if self._is_wanted and now_ns - self._shown_ns >= _PROGRESS_NS:
            self._shown_ns = now_ns
            line = f"{show_count(sending.records, 'record')}, {show_size(sending.bytes)}"
            click.echo(f"\r{line}\x1b[K", err=True, nl=False)

    def clear(self) -> None:
        if self._shown_ns:
            click.echo("\r\x1b[K", err=True, nl=False)
