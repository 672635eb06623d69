"""Somebody commits for a group of his own, deletes it, and asks whether it stays so (S21).

What was deleted comes back if it is still in the log for who coordinates the group next. In some
seeds only; what is drawn is a stream of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kdist.client.admin.clients import AsyncAdmin
from kdist.errors import KdistError
from kdist.groups.context import partition_for
from kdist.model import OFFSETS_TOPIC, TopicPartition
from tests.simulator.assignments import DOUBT_S
from tests.simulator.cluster import PORT, SETTINGS
from tests.simulator.record import NEVER_S, require
from tests.simulator.shape import TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

HOST = "forgetter"
_GROUP = "forgotten"
_KEY = TopicPartition(TOPIC, 0)
_SHARE = 0.4  # of seeds


class Forgetting:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._trace = history.trace
        self._rng = history.cluster.stream(HOST)
        self._number = 0
        self._value: int | None = None  # what is committed, as far as is known
        self._known_s = NEVER_S
        # What may be, with the times of asking for it and the epochs in which that was.
        self._doubtful: dict[int | None, tuple[float, int]] = {}
        # What may be again. A coordinator shows all that it has loaded, as Kafka's did for long: if
        # that was never committed, the next one may not have it.
        self._earlier: set[int | None] = set()
        self._is_over = False
        self._task: asyncio.Task[None] | None = None
        if self._rng.random() < _SHARE:
            history.client_hosts.append(HOST)
            self._admin = AsyncAdmin(
                [f"m{each}:{PORT}" for each in history.shape.broker_ids],
                request_timeout_ms=3_000,
                default_api_timeout_ms=2_000,
                network=history.cluster.network.host(HOST),
            )
            process = history.cluster.process(HOST)
            self._task = history.cluster.loop.create_task(process.run(self._work()))

    async def end(self) -> None:
        """Finish what is under way."""
        self._is_over = True
        if self._task is not None:
            await self._task

    @property
    def _epoch(self) -> int:
        """With another begins another coordinator."""
        count = int(SETTINGS["offsets.topic.num.partitions"])
        state = self._history.known.states.get(
            TopicPartition(OFFSETS_TOPIC, partition_for(_GROUP, count))
        )
        return -1 if state is None else state.leader_epoch

    async def _work(self) -> None:
        async with self._admin:
            while not self._is_over:
                await asyncio.sleep(self._rng.uniform(0, 2))
                ask = self._rng.choice((self._commit, self._delete, self._compare, self._compare))
                if HOST in self._history.script.idle:
                    continue
                try:
                    await ask()
                except KdistError as error:
                    self._trace.note(f"{HOST}: {error}")

    async def _commit(self) -> None:
        self._number += 1
        number = self._number
        self._doubtful[number] = self._trace.now_s, self._epoch
        await self._admin.alter_group_offsets(_GROUP, {_KEY: number})
        self._know(number)

    async def _delete(self) -> None:
        self._doubtful[None] = self._trace.now_s, self._epoch
        await self._admin.delete_groups([_GROUP])
        self._know(None)
        self._trace.count("group deleted")

    def _know(self, value: int | None) -> None:
        del self._doubtful[value]
        self._earlier.clear()
        self._value, self._known_s = value, self._trace.now_s
        self._trace.add(HOST, value)

    async def _compare(self) -> None:
        asked_s = self._trace.now_s
        found = (await self._admin.list_group_offsets(_GROUP)).get(_KEY)
        self._trace.add(HOST, found)
        is_possible = found == self._value or found in self._doubtful or found in self._earlier
        is_possible = is_possible or self._history.may_offsets_be_lost(_GROUP, self._known_s)
        sentence = f"S21: {_GROUP} has committed {found}, and {self._value} is what was answered"
        require(is_possible, sentence)
        if found != self._value and self._doubtful.get(found, (0.0, -1))[1] != self._epoch:
            self._earlier.add(self._value)
        self._value, self._known_s = found, asked_s
        for value, (sent_s, _epoch) in list(self._doubtful.items()):
            if sent_s < asked_s - DOUBT_S:
                del self._doubtful[value]
