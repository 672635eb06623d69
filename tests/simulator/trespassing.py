"""In some seeds: somebody who asks for what must be refused, or when it is least convenient.

Records are deleted that are not committed, or while a replica is out of sync; a member commits as
if it were of the generation before; a topic is deleted as the coordinator of those who read it
loads. What he draws is a stream of his own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

from kdist.client.admin.clients import AsyncAdmin
from kdist.client.admin.records import HIGH_WATERMARK
from kdist.client.committed import commit_request
from kdist.client.coordinators import find_coordinator
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import KdistError
from kdist.model import OFFSETS_TOPIC, TopicPartition
from kdist.protocol.offset_commit import OffsetCommitResponse
from kdist.replication.partition import Partition
from tests.simulator.assignments import GROUP
from tests.simulator.cluster import PORT
from tests.simulator.record import require
from tests.simulator.shape import MORTAL

if TYPE_CHECKING:
    from tests.simulator.history import History

HOST = "trespasser"
_SHARE = 0.3  # of seeds
_DELETING_SHARE = 0.3  # of loads, as which a topic is deleted


class Trespassing:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._trace = history.trace
        self._rng = history.cluster.stream(HOST)
        self._is_over = self._rng.random() >= _SHARE
        self._tasks: list[asyncio.Task[None]] = []
        if not self._is_over:
            self._admin = AsyncAdmin(
                [f"m{each}:{PORT}" for each in history.shape.broker_ids],
                request_timeout_ms=3_000,
                default_api_timeout_ms=4_000,
                network=history.cluster.network.host(HOST),
            )
            self._process = history.cluster.process(HOST)
            self._begin(self._work())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        create = self._history.cluster.loop.create_task  # in no broker's process, which might end
        self._tasks.append(Context().run(create, self._process.run(work)))

    async def end(self) -> None:
        """Finish what is under way."""
        self._is_over = True
        for each in self._tasks[:1]:
            await each

    async def _work(self) -> None:
        await self._admin.start()
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0, 1))
            do = self._rng.choice((self._delete_records, self._delete_records, self._commit))
            if HOST not in self._history.script.idle:
                await self._try(do())
        for each in self._tasks[1:]:
            await each
        await self._admin.close()

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except KdistError as error:
            self._trace.note(f"{HOST}: {error}")

    # Records

    async def _delete_records(self) -> None:
        """What is not committed, which the broker's answer is looked at for; or all that is, where
        a replica is not in sync."""
        known, offsets = self._history.known, dict[TopicPartition, int]()
        for key in self._history.stable_partitions():
            leading, state = self._leading(key), known.states.get(key)
            if state is None:
                continue
            if leading is not None and leading.log.end_offset > leading.high_watermark:
                offsets[key] = leading.log.end_offset
            elif {*known.topics[key.topic].partitions[key.partition]} - {*state.isr}:
                offsets[key] = HIGH_WATERMARK
        if offsets:
            key = self._rng.choice(sorted(offsets))
            self._trace.note(f"{HOST} deletes {key} before {offsets[key]}")
            await self._admin.delete_records({key: offsets[key]})

    def _leading(self, key: TopicPartition) -> Partition | None:
        state = self._history.known.states.get(key)
        for broker in self._history.machines.brokers():
            if state is not None and broker.id == state.leader:
                return broker.service.replicas.partitions.get(key)
        return None

    # Groups

    async def _commit(self) -> None:
        """As a member would that has missed a rebalance (S21)."""
        member = self._history.assignments.member
        keys = self._history.stable_partitions()
        if member is None or member.generation < 2 or not keys:
            return
        generation, offset = member.generation - 1, OffsetAndMetadata(0)
        request = commit_request(GROUP, {self._rng.choice(keys): offset})
        request.generation_id, request.member_id = generation, member.member_id
        coordinator = await find_coordinator(self._admin.cluster, GROUP)
        answer: OffsetCommitResponse = await self._admin.cluster.ask(request, coordinator)
        errors = [each.error_code for topic in answer.topics for each in topic.partitions]
        may_be_lost = self._history.may_offsets_be_lost(GROUP, 0.0)
        sentence = f"S21: generation {generation} has committed, of {member.member_id}"
        require(all(errors) or may_be_lost, sentence)
        self._trace.count("commit of an earlier generation refused")

    def loading(self, key: TopicPartition) -> None:
        """A broker begins to load offsets: have topics deleted that members have read."""
        if self._is_over or key.topic != OFFSETS_TOPIC or self._rng.random() >= _DELETING_SHARE:
            return
        names = [each for each in MORTAL if each in self._history.known.counts()]
        if names:
            self._trace.note(f"{HOST} deletes {names}")
            self._begin(self._try(self._delete(self._rng.choice(names))))

    async def _delete(self, name: str) -> None:
        await self._admin.delete_topics([name])
