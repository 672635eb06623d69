"""Names for shell completion: topics and groups, if the cluster answers quickly.

Someone who has pressed Tab should not be kept waiting or shown an error: on a timeout or any
failure nothing is offered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from kdist.errors import KdistError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster

_PATIENCE_S = 1.0

NamesOf = Callable[["Cluster"], Awaitable[Iterable[str]]]


async def _topics(cluster: Cluster) -> Iterable[str]:
    from kdist.client.admin.topics import list_topics

    return [topic.name for topic in await list_topics(cluster)]


async def _groups(cluster: Cluster) -> Iterable[str]:
    from kdist.client.admin.groups import list_groups

    return [group.name for group in await list_groups(cluster)]


def _completing(
    names_of: NamesOf,
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    def complete(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        from kdist.cli.shared.client_settings import clients_of
        from kdist.cli.shared.connecting import ask_cluster

        async def within_patience(cluster: Cluster) -> Iterable[str]:
            import asyncio

            async with asyncio.timeout(_PATIENCE_S):
                return await names_of(cluster)

        try:
            names = ask_cluster(clients_of(ctx), within_patience)
        except (KdistError, OSError, click.UsageError):  # TimeoutError is an OSError
            return []
        return [CompletionItem(name) for name in names if name.startswith(begun)]

    return complete


complete_topics = _completing(_topics)
complete_groups = _completing(_groups)
