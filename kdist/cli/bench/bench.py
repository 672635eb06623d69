"""`kdist bench`: measures throughput of producing and consuming, and end-to-end latency."""

from __future__ import annotations

import click

from kdist.cli.shared.click_groups import LazyGroup

_COMMANDS = {
    "produce": (
        "kdist.cli.bench.produce:produce",
        "Write records as fast as possible, or at a rate.",
    ),
    "consume": ("kdist.cli.bench.consume:consume", "Read a topic as fast as possible."),
    "latency": ("kdist.cli.bench.latency:latency", "Time records from the producer to a consumer."),
}


@click.group(cls=LazyGroup, commands_by_name=_COMMANDS)
def bench() -> None:
    """Measure producing, consuming, and end-to-end latency, with kdist's own clients.

    Use topics created for this: the records stay in them. If brokers and client share one machine,
    the figures say little about a cluster.
    """
