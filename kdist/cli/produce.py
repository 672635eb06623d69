"""`kdist produce`: lines from standard input or a file, a record each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kdist.cli.connecting import ask_cluster, broker_option
from kdist.cli.options import json_option, print_json
from kdist.cli.show import show_count, show_size
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from kdist.cli.line_source import Lines
    from kdist.client.cluster import Cluster

_ACKS = {"0": 0, "1": 1, "all": -1}
_PROGRESS_NS = 200_000_000


@click.command()
@click.argument("topic")
@click.option("--file", "path", metavar="FILE", help="Read this instead of standard input.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="What stands between key and value in each line; without it there are no keys.",
)
@click.option("--partition", type=click.IntRange(min=0), help="All to this one partition.")
@click.option(
    "--codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compress batches.",
)
@click.option(
    "--acks",
    type=click.Choice(list(_ACKS)),
    default="all",
    show_default=True,
    help="Who has a record before it counts as written: nobody, its leader, all in-sync replicas.",
)
@broker_option
@json_option
def produce(  # noqa: PLR0913 - one for each option
    topic: str,
    path: str | None,
    key_separator: str | None,
    partition: int | None,
    codec: str,
    acks: str,
    broker: str,
    as_json: bool,
) -> None:
    """Write lines to a topic, each a record, and say how many there were.

    Records with a key go to the partition that Java's producer would choose; others to all in
    turn. After a lost connection a batch is sent again, and may be in the topic twice.

    \b
    Examples:
      echo hello | kdist produce clicks
      kdist produce clicks --file clicks.tsv --key-separator '\\t' --codec zstd
    """
    separator = None if key_separator is None else _unescaped(key_separator)
    from kdist.cli.line_source import FileLines, StreamLines

    source: Lines = FileLines(path) if path else StreamLines(sys.stdin.buffer)
    clock = SystemClock()
    start_ns = clock.monotonic_ns()

    async def work(cluster: Cluster) -> Sending:
        sending = Sending(cluster, topic, clock, _ACKS[acks], codec)
        await sending.start(partition)
        progress = Progress(clock, _shows_progress(source))
        async for lines in source.read():
            await sending.send(lines, separator)
            progress.show(sending)
        progress.clear()
        return sending

    done = ask_cluster(broker, work)
    _report(done, (clock.monotonic_ns() - start_ns) / 1e9, as_json)


def _unescaped(text: str) -> bytes:
    if not text:
        raise click.BadParameter("it is empty.", param_hint="'--key-separator'")
    return text.replace("\\t", "\t").encode()


def _shows_progress(source: Lines) -> bool:
    """Not where a person types the lines."""
    return sys.stderr.isatty() and not source.is_terminal


def _report(done: Sending, seconds: float, as_json: bool) -> None:
    rate = done.records / seconds if seconds else 0.0
    if as_json:
        print_json(
            {
                "records": done.records,
                "bytes": done.bytes,
                "seconds": round(seconds, 3),
                "records_per_second": round(rate),
            }
        )
        return
    size = show_size(done.bytes)
    shown = show_count(done.records, "record")
    click.echo(f"{shown} ({size}) in {seconds:.2f} s: {rate:,.0f} records/s")


class Sending:
    """Lines on their way into a topic. Owner: the command."""

    def __init__(self, cluster: Cluster, topic: str, clock: Clock, acks: int, codec: str) -> None:
        from kdist.records.compression import Codec

        self.records = 0
        self.bytes = 0
        self._cluster = cluster
        self._topic = topic
        self._clock = clock
        self._acks = acks
        self._codec = Codec[codec.upper()]
        self._next = 0

    async def start(self, partition: int | None) -> None:
        """Look up the topic. `UserError` if it, or the partition, does not exist."""
        found = await self._cluster.topic(self._topic)
        self._count = len(found.partitions)
        if partition is not None and partition >= self._count:
            raise UserError(
                f"topic {self._topic} has no partition {partition}: it has"
                f" {show_count(self._count, 'partition')}, from 0"
            )
        self._only = partition

    async def send(self, lines: Sequence[bytes], separator: bytes | None) -> None:
        """Send the lines and wait until they are acknowledged."""
        from kdist.client.producing import produce as produce_batches
        from kdist.records.build import build_batch

        now_ms = self._clock.now_ms()
        batches = {
            TopicPartition(self._topic, number): build_batch(
                values, keys, timestamp_ms=now_ms, codec=self._codec
            )
            for number, (keys, values) in self._spread(lines, separator).items()
        }
        await produce_batches(self._cluster, batches, self._acks)
        self.records += len(lines)
        self.bytes += sum(map(len, lines))

    def _spread(
        self, lines: Sequence[bytes], separator: bytes | None
    ) -> dict[int, tuple[list[bytes] | None, list[bytes]]]:
        """Keys and values by partition: without keys, all that came together stay together."""
        if separator is None:
            self._next += 1
            number = (self._next - 1) % self._count if self._only is None else self._only
            return {number: (None, list(lines))}
        from kdist.client.partitioner import partition_for

        spread: dict[int, tuple[list[bytes] | None, list[bytes]]] = {}
        for index, line in enumerate(lines):
            key, found, value = line.partition(separator)
            if not found:
                raise UserError(
                    f"line {self.records + index + 1} has no {separator.decode()!r} between key"
                    f" and value; {show_count(self.records, 'record')} before it were written"
                )
            number = partition_for(key, self._count) if self._only is None else self._only
            keys, values = spread.setdefault(number, ([], []))
            assert keys is not None
            keys.append(key)
            values.append(value)
        return spread


class Progress:
    """A line on the terminal that tells how far it is; nothing where there is no terminal."""

    def __init__(self, clock: Clock, is_wanted: bool) -> None:
        self._clock = clock
        self._is_wanted = is_wanted
        self._shown_ns = 0

    def show(self, sending: Sending) -> None:
        """Renew the line, a few times a second."""
        now_ns = self._clock.monotonic_ns()
        if self._is_wanted and now_ns - self._shown_ns >= _PROGRESS_NS:
            self._shown_ns = now_ns
            line = f"{show_count(sending.records, 'record')}, {show_size(sending.bytes)}"
            click.echo(f"\r{line}\x1b[K", err=True, nl=False)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown_ns:
            click.echo("\r\x1b[K", err=True, nl=False)
