"""`kdist mirror status`: the lag of each partition, as a table or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click

from kdist.cli.shared.options import print_json
from kdist.cli.shared.show import show_count, show_error, show_size
from kdist.cli.shared.table import Column, Row, print_table
from kdist.client.cluster import Cluster, did_you_mean, parse_addresses
from kdist.config.mirror import Flow, MirrorConfig
from kdist.errors import KdistError, UserError
from kdist.mirror.status import FlowStatus, PartitionStatus, flow_status
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.runtime.clock import SystemClock

T = TypeVar("T")

_RETRY_MS = 5_000
_COLUMNS = (
    Column("FLOW"),
    Column("SOURCE"),
    Column("TARGET"),
    Column("POSITION", is_number=True),
    Column("END", is_number=True),
    Column("RECORDS BEHIND", is_number=True),
    Column("ABOUT", is_number=True),
    Column("SECONDS", is_number=True),
)


def show_status(config: MirrorConfig, name: str | None, *, as_json: bool) -> None:
    """Print the flows' status; then `UserError` for the flows whose clusters did not answer."""
    flows = config.flows if name is None else (named_flow(config, name),)
    now_ms = SystemClock().now_ms()
    found: list[FlowStatus] = []
    failed: list[str] = []
    for flow in flows:
        try:
            found.append(_asked(flow, now_ms))
        except KdistError as error:
            failed.append(f"flow {flow.name}: {show_error(error)}")
    if as_json:
        print_json([_as_json(each) for each in found])
    else:
        _print(found)
    if failed:
        raise UserError("\n".join(failed))


def _print(found: Sequence[FlowStatus]) -> None:
    print_table(_COLUMNS, (row for each in found for row in _rows(each)))
    for each in found:
        for topic, reason in each.held.items():
            click.echo(f"{each.name}: topic {topic} is not mirrored: {reason}")
        click.echo(_verdict(each))


def _verdict(found: FlowStatus) -> str:
    if not found.partitions:
        return f"{found.name}: there is no topic to mirror in the source."
    behind = sum(row.lag.records for row in found.partitions)
    return f"{found.name} is " + (
        f"{show_count(behind, 'record')} behind." if behind else "up to date."
    )


def _asked(flow: Flow, now_ms: int) -> FlowStatus:
    return with_clusters(flow, lambda source, target: flow_status(flow, source, target, now_ms))


def named_flow(config: MirrorConfig, name: str) -> Flow:
    """The flow of this name; `UserError`, which suggests the nearest name, if there is none."""
    flow = config.flow(name)
    if flow is None:
        hint = did_you_mean(name, [each.name for each in config.flows])
        raise UserError(f"the file has no flow {name}{hint}")
    return flow


def with_clusters(flow: Flow, work: Callable[[Cluster, Cluster], Awaitable[T]]) -> T:
    """Run `work` with the flow's source and target, and return its result."""

    async def run() -> T:
        network = AsyncioNetwork(asyncio.get_running_loop())
        settings = ClientSettings(client_id="kdist-mirror-status")
        source, target = (
            Cluster(network, parse_addresses(text), settings, _RETRY_MS)
            for text in (flow.settings.source, flow.settings.target)
        )
        try:
            return await work(source, target)
        finally:
            source.close()
            target.close()

    return asyncio.run(run())


def _rows(found: FlowStatus) -> Iterator[Row]:
    for each in found.partitions:
        position = "-" if each.position is None else str(each.position)
        cells = (
            found.name,
            str(each.source),
            str(each.target),
            position,
            str(each.end),
            str(each.lag.records),
            show_size(int(each.lag.bytes_about)),
            f"{each.lag.seconds:.1f}",
        )
        yield Row(cells, _below(each))


def _below(each: PartitionStatus) -> Iterable[str]:
    if each.lost:
        yield f"    {show_count(each.lost, 'record')} were lost before they were mirrored"
    if each.stopped is not None:
        yield f"    stopped: {each.stopped}"


def _as_json(found: FlowStatus) -> dict[str, Any]:
    return {
        "flow": found.name,
        "held_topics": found.held,
        "partitions": [
            {
                "topic": each.source.topic,
                "partition": each.source.partition,
                "target_topic": each.target.topic,
                "position": each.position,
                "end": each.end,
                "lag_records": each.lag.records,
                "lag_bytes": int(each.lag.bytes_about),
                "lag_seconds": round(each.lag.seconds, 3),
                "lost_records": each.lost,
                "stopped": each.stopped,
            }
            for each in found.partitions
        ],
    }
