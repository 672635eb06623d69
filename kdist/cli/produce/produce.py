"""`kdist produce`: writes lines from standard input or a file to a topic, each as a record.

`input` reads the lines, and `Fixed` is what options say of every record.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster, check_partition, count_partitions
from kdist.cli.shared.files import complete_files
from kdist.cli.shared.options import (
    TIME_FORMS,
    Time,
    acks_option,
    codec_option,
    json_option,
    not_empty,
    say_rate,
)
from kdist.cli.shared.show import show_count, show_error, show_size
from kdist.cli.shared.topic_arguments import topic_argument
from kdist.errors import KdistError, UserError
from kdist.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from kdist.cli.produce.input import Columns, Fixed, Headers, JsonLines, Row, TextLines
    from kdist.cli.shared.line_source import Lines
    from kdist.client.cluster import Cluster
    from kdist.client.producer.asynchronous import AsyncProducer
    from kdist.client.producer.results import SentMany

_DEFAULTS: dict[str, Any] = {
    "max_request_size": 1 << 25,  # leaves the limit on records to the topic
    "buffer_memory": 1 << 26,
}
_CLOSE_S = 2.0  # for what an interrupt or error leaves; after success nothing is left to deliver
_IN_FLIGHT_MAX = 16  # chunks of lines
_PROGRESS_NS = 200_000_000
_PATIENCE_S = 2.0  # until it is said what keeps records from being acknowledged


@click.command()
@topic_argument
@click.option(
    "--file",
    "path",
    metavar="FILE",
    callback=not_empty,
    shell_complete=complete_files,
    help="Read this instead of standard input, which is - too.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="The text between key and value in each line; without it there are no keys.",
)
@click.option(
    "--null", metavar="TEXT", help="A value or key that is this text is a null: a tombstone."
)
@click.option(
    "--from-json",
    is_flag=True,
    help="Each line is a record as `kdist consume --json` prints it.",
)
@click.option("--key", metavar="TEXT", help="Every record's key.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of every record; NAME alone for a null. May be repeated.",
)
@click.option("--timestamp", type=Time(), help=f"Every record's time: {TIME_FORMS}.")
@click.option("--partition", type=click.IntRange(min=0), help="Write to this partition only.")
@codec_option
@acks_option("0", "1", "all")
@client_options("producer")
@json_option
def produce(  # noqa: PLR0913 - one for each option
    topic: str,
    path: str | None,
    key_separator: str | None,
    null: str | None,
    from_json: bool,
    key: str | None,
    headers: tuple[str, ...],
    timestamp: int | None,
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

    With --from-json a line is an object with `value`, and if wanted `key`, `headers` (pairs),
    `timestamp` (ms) and `partition`; key and values are text, null, or {"hex": "00ff"}. `topic` and
    `offset` are ignored. --key, --timestamp and --partition take the place of what a line says.

    \b
    Examples:
      echo hello | kdist produce clicks --header source=shell
      kdist produce clicks --file clicks.tsv --key-separator '\\t' --codec zstd
      echo 'ann=NULL' | kdist produce users --key-separator = --null NULL
      kdist consume clicks --last 10 --until-end --json | kdist produce copy --from-json
    """
    from kdist.cli.produce.input import Fixed

    fixed = Fixed(_bytes(key), _headers(headers), partition, timestamp)
    text = _text_lines(fixed, key_separator, null, from_json=from_json)
    settings = clients.producer(_DEFAULTS, acks=acks, compression_type=codec)
    source = _source(path)
    clock = SystemClock()
    start_ns = clock.monotonic_ns()

    async def work(cluster: Cluster) -> Sending:
        count = await count_partitions(cluster, topic)
        check_partition(topic, partition, count)
        from kdist.cli.produce.input import JsonLines
        from kdist.client.producer.asynchronous import AsyncProducer

        producer = await AsyncProducer(**settings).start()
        try:
            sending = Sending(producer, topic, text or JsonLines(fixed, topic, count))
            await _send_all(source, sending, Progress(clock, _shows_progress(source)))
        finally:
            await producer.close(_CLOSE_S)
        return sending

    done = ask_cluster(clients, work)
    say_rate(done.records, done.bytes, (clock.monotonic_ns() - start_ns) / 1e9, as_json)


def _source(path: str | None) -> Lines:
    from kdist.cli.shared.line_source import Lines
    from kdist.runtime.disk import open_stream

    return Lines(sys.stdin.buffer if path is None or path == "-" else open_stream(path))


async def _send_all(source: Lines, sending: Sending, progress: Progress) -> None:
    """Send every line; how many were written is part of what an interrupt or error says."""
    from asyncio import CancelledError, create_task

    watching = create_task(_say_what_delays(sending, progress))
    try:
        async for lines in source.read():
            await sending.send(lines)
            progress.show(sending)
        await sending.finish()
    except CancelledError:
        progress.clear()
        # In a task of its own: in one that is cancelled, Python 3.11's timeouts raise the like.
        written = await create_task(sending.abort())
        left = sending.read - written
        more = f"; not acknowledged: {show_count(left, 'record')}" if left else ""
        told = f"interrupted; written: {show_count(written, 'record')}{more}"
        click.echo(f"kdist: {told}", err=True)
        raise
    except (KdistError, OSError) as error:
        count = show_count(await sending.abort(), "record")
        raise UserError(f"{show_error(error).rstrip('.')}; written: {count}") from None
    finally:
        watching.cancel()
        progress.clear()


async def _say_what_delays(sending: Sending, progress: Progress) -> None:
    """Say on standard error what keeps records from being acknowledged, once it takes long."""
    from asyncio import sleep

    said, since = "", -1
    while True:
        await sleep(_PATIENCE_S)
        is_stuck, since = sending.is_waiting and sending.records == since, sending.records
        told = sending.delay()
        if is_stuck and told != said:
            said = told
            progress.clear()
            click.echo(f"kdist: {told}", err=True)


def _text_lines(
    fixed: Fixed, separator: str | None, null: str | None, *, from_json: bool
) -> TextLines | None:
    """How lines of text are read; None for lines of JSON."""
    from kdist.cli.produce.input import TextLines

    if from_json:
        if separator is not None or null is not None:
            other = "--null" if separator is None else "--key-separator"
            raise click.UsageError(f"{other} is about lines of text: --from-json needs none.")
        return None
    if separator is not None:
        if not separator:
            raise click.BadParameter("it is empty.", param_hint="'--key-separator'")
        if fixed.key is not None:
            raise click.UsageError("Give one of --key and --key-separator.")
        separator = separator.replace("\\t", "\t")
    return TextLines(fixed, _bytes(separator), _bytes(null))


def _bytes(text: str | None) -> bytes | None:
    """Any bytes that a command line can have."""
    return None if text is None else text.encode(errors="surrogateescape")


def _headers(texts: tuple[str, ...]) -> Headers:
    from kdist.cli.produce.input import header_name

    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            if not name:
                raise UserError(f"{text!r} is not NAME=VALUE")
            found.append((header_name(name), _bytes(value) if equals else None))
        except UserError as error:
            raise click.BadParameter(f"{error}.", param_hint="'--header'") from None
    return tuple(found)


def _shows_progress(source: Lines) -> bool:
    """Whether standard error is a terminal, and nobody is typing the lines."""
    return sys.stderr.isatty() and not source.is_terminal


class Sending:
    """Sends lines to a topic, several chunks in flight at a time. Owner: the command.

    `read` counts the lines that were read, `records` and `bytes` what is acknowledged.
    """

    def __init__(self, producer: AsyncProducer, topic: str, source: TextLines | JsonLines) -> None:
        self.records = 0
        self.bytes = 0
        self._producer = producer
        self._topic = topic
        self._source = source
        self.read = 0
        self._in_flight: deque[tuple[SentMany, Sequence[bytes]]] = deque()

    async def send(self, lines: Sequence[bytes]) -> None:
        """Send the lines; returns before all of them are acknowledged. `ApiError`.

        `BadLine` for a line that is no record, once all lines before it are acknowledged.
        """
        from kdist.cli.produce.input import BadLine

        try:
            columns = self._source.read(lines, self.read + 1)
        except BadLine as error:
            await self.send(lines[: error.number - self.read - 1])
            await self.finish()
            raise
        self.read += len(lines)
        if columns.rows is None:
            await self._send_columns(columns, lines)
        else:
            await self._send_rows(columns.rows, lines)
        await self._settle(_IN_FLIGHT_MAX)

    async def _send_columns(self, columns: Columns, lines: Sequence[bytes]) -> None:
        try:
            many = await self._producer.send_many(self._topic, columns.values, columns.keys)
        except BaseException as error:
            if (sent := getattr(error, "sent", None)) is not None:  # for `abort` to count
                self._in_flight.append((sent, lines))
            raise
        self._in_flight.append((many, lines))

    async def _send_rows(self, rows: Sequence[Row], lines: Sequence[bytes]) -> None:
        from kdist.client.producer.results import SentMany

        together = SentMany()
        # Before any is sent: `abort` counts those before the one at which this ends.
        self._in_flight.append((together, lines))
        for row in rows:
            together.add_one(await self._producer.send(self._topic, *row))

    async def finish(self) -> None:
        """Wait until everything is acknowledged."""
        await self._settle(0)

    async def abort(self) -> int:
        """Close the producer; how many records were written.

        That includes the records of a chunk of which only others failed.
        """
        await self._producer.close(_CLOSE_S)
        failed = (count for many, _ in self._in_flight for _, count, _ in many.failures())
        return self.records + sum(many.count for many, _ in self._in_flight) - sum(failed)

    @property
    def is_waiting(self) -> bool:
        """Whether any record is sent and not acknowledged."""
        return bool(self._in_flight) and not self._in_flight[0][0].done()

    def delay(self) -> str:
        """What keeps records from being acknowledged, as far as it is known."""
        errors = (many.delayed_by() for many, _ in self._in_flight)
        cause = next((f": {error}" for error in errors if error), "")
        return f"no record was acknowledged for a while{cause}"

    async def _settle(self, chunks_max: int) -> None:
        """Count what is acknowledged; wait until at most `chunks_max` chunks are in flight."""
        waiting = self._in_flight
        while len(waiting) > chunks_max or (waiting and waiting[0][0].done()):
            many, lines = waiting[0]
            await many
            waiting.popleft()
            self.records += len(lines)
            self.bytes += sum(map(len, lines))


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
