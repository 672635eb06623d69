"""`kdist bench`: what a cluster takes, gives, and how long a record is under way."""

from __future__ import annotations

import click

from kdist.cli.lazy import LazyGroup

_COMMANDS = {
    "produce": (
        "kdist.cli.bench_produce:produce",
        "Write records as fast as it goes, or at a rate.",
    ),
    "consume": ("kdist.cli.bench_consume:consume", "Read a topic as fast as it goes."),
    "latency": ("kdist.cli.bench_latency:latency", "Time records from the producer to a consumer."),
}


@click.group(cls=LazyGroup, commands_by_name=_COMMANDS)
def bench() -> None:
    """Measure producing, consuming, and latency from end to end, with kdist's own clients.

    Use topics made for this: the records stay in them. If brokers and client share one machine, the
    figures say little about a cluster.
    """
