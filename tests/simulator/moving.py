"""Somebody moves partitions to other brokers, and changes his mind and the number of replicas.

In some seeds only: a move holds up much else. What he draws is a stream of its own, so that it does
not shift what others draw.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kdist.client.admin.clients import AsyncAdmin
from kdist.errors import KdistError
from kdist.model import TopicPartition
from kdist.zk.values import TopicAssignment
from tests.simulator.cluster import PORT

if TYPE_CHECKING:
    from tests.simulator.history import History

HOST = "mover"
_SHARE = 0.4  # of seeds with moves


class Moving:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._trace = history.trace
        self._known = history.known
        self._rng = history.cluster.stream(HOST)
        self._is_on = self._rng.random() < _SHARE
        self._pause_s = self._rng.choice((0.5, 2, 5))
        self._is_over = False
        self._admin = AsyncAdmin(
            [f"m{each}:{PORT}" for each in history.shape.broker_ids],
            request_timeout_ms=8_000,
            default_api_timeout_ms=15_000,
            network=history.cluster.network.host(HOST),
        )
        self._process = history.cluster.process(HOST)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Move something now and then, until `end`."""
        if self._is_on:
            self._task = self._history.cluster.loop.create_task(self._process.run(self._work()))

    async def end(self) -> None:
        """Finish what is under way; the moves themselves go on."""
        self._is_over = True
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        await self._admin.start()
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0, 2 * self._pause_s))
            if keys := sorted(self._known.states):
                try:
                    await self._move(self._rng.choice(keys))
                except KdistError as error:
                    self._trace.note(f"mover: {error}")
        await self._admin.close()

    async def _move(self, key: TopicPartition) -> None:
        topic = self._known.topics.get(key.topic)
        if topic is None or key.partition not in topic.partitions:
            return
        is_moving = _is_moving(topic, key)
        if is_moving and self._rng.random() < 0.4:
            self._trace.note(f"mover cancels {key}")
            await self._admin.alter_partition_reassignments({key: None})
            self._trace.count("move cancelled")
            return
        least = self._history.shape.topics[key.topic].replication_factor
        brokers = self._history.shape.broker_ids
        factor = self._rng.randint(least, len(brokers))
        target = self._rng.sample(brokers, factor)
        self._trace.note(f"mover moves {key} to {target}")
        await self._admin.alter_partition_reassignments({key: target})
        self._trace.count("move superseded", is_moving)
        self._trace.count("move begun")


def _is_moving(topic: TopicAssignment, key: TopicPartition) -> bool:
    return key.partition in topic.adding or key.partition in topic.removing
