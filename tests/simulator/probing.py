"""A client that asks raw questions, and compares the answers with each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kdist.client.admin.clients import AsyncAdmin
from kdist.errors import ApiError, KdistError
from kdist.model import TopicPartition
from kdist.protocol.fetch import (
    NEWEST_BY_NAME,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
)
from kdist.records.batch import crc_fault, read_header
from tests.simulator.cluster import PORT
from tests.simulator.record import NEVER_S, require

if TYPE_CHECKING:
    from tests.simulator.history import History

HOST = "prober"
GROUP = "positions"
_PATIENCE_S = 40.0
_DOUBT_S = 30.0  # for so long a commit without an answer may yet be carried out


class Commit:
    """What is known of one partition's committed offset: a value, or one of some."""

    def __init__(self) -> None:
        self.value: int | None = None  # the last that was acknowledged
        self.acked_s = NEVER_S
        self.doubtful: dict[int, float] = {}  # those in doubt, with the times when they were sent
        # A coordinator has what its log has, committed or not. So what it told last may go again,
        # to who leads next; then it is one of these.
        self.former: set[int | None] = set()


class Probing:
    """Fetches (S16), asks for ends (S17), commits and asks again (S21). Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._trace = history.trace
        self._rng = history.cluster.stream(HOST)
        self._is_over = False
        self._number = 0
        self._ends: dict[TopicPartition, tuple[int, float]] = {}
        self._commits: dict[TopicPartition, Commit] = {}
        brokers = [f"m{each}:{PORT}" for each in history.shape.broker_ids]
        self._admin = AsyncAdmin(
            brokers,
            request_timeout_ms=3_000,
            default_api_timeout_ms=2_000,
            network=history.cluster.network.host(HOST),
        )
        process = history.cluster.process(HOST)
        self._task = history.cluster.loop.create_task(process.run(self._work()))

    async def end(self) -> None:
        self._is_over = True
        await self._task

    async def _work(self) -> None:
        rng = self._rng
        async with self._admin:
            while not self._is_over:
                await asyncio.sleep(rng.uniform(0, 1))
                key = rng.choice(self._history.stable_partitions())
                ask = rng.choice((self._fetch, self._ask_end, self._commit, self._compare))
                if HOST in self._history.script.idle:
                    continue
                try:
                    await ask(key)
                except KdistError as error:
                    self._trace.note(f"{HOST}: {error}")
            for key in self._history.stable_partitions():
                await self._compare_at_last(key)

    async def _compare_at_last(self, key: TopicPartition) -> None:
        """The coordinator may yet have to be elected."""
        end_s = self._trace.now_s + _PATIENCE_S
        while True:
            try:
                await self._compare(key)
            except KdistError as error:
                require(self._trace.now_s < end_s, f"L1: {key}'s commits are not told: {error}")
            else:
                return

    # S16

    async def _fetch(self, key: TopicPartition) -> None:
        cluster = self._admin.cluster
        await cluster.metadata([key.topic])
        end, _ = self._ends.get(key, (0, 0.0))
        offset = self._rng.randint(0, end)
        asked = FetchPartition(
            partition=key.partition, fetch_offset=offset, partition_max_bytes=20_000
        )
        topics = [FetchTopic(topic=key.topic, partitions=[asked])]
        request = FetchRequest(
            max_wait_ms=self._rng.choice((0, 300)), min_bytes=1, max_bytes=1 << 20, topics=topics
        )
        if key not in cluster.leaders:
            return  # the broker that was asked does not know yet that the topic has grown
        answer = await cluster.ask(request, cluster.leaders[key], NEWEST_BY_NAME)
        ((found,),) = (topic.partitions for topic in answer.responses)
        if not found.error_code:
            self._check_fetched(key, offset, found)

    def _check_fetched(self, key: TopicPartition, offset: int, found: FetchPartitionResult) -> None:
        start, stable, mark = found.log_start_offset, found.last_stable_offset, found.high_watermark
        what = f"S16: a fetch of {key} at {offset}"
        require(start <= stable <= mark, f"{what} tells {start}, {stable}, {mark}", key)
        data, position, expected = bytes(found.records or b""), 0, None
        epoch = self._history.known.states[key].leader_epoch
        while position < len(data):
            header = read_header(data, position)
            if position + header.size > len(data):
                break
            fault = crc_fault(data, position, header)
            require(fault is None, f"{what} gives a batch at {header.base_offset}: {fault}", key)
            is_next = expected in (None, header.base_offset) and header.next_offset > offset
            require(is_next, f"{what} gives {header.base_offset} where {expected} follows", key)
            told = f"to {header.next_offset} of epoch {header.partition_leader_epoch}"
            may_be_read = header.next_offset <= mark and header.partition_leader_epoch <= epoch
            sentence = f"{what} gives records {told}, the high watermark is {mark} of epoch {epoch}"
            require(may_be_read, sentence, key)
            expected, position = header.next_offset, position + header.size
        self._trace.add(key, offset, mark, len(data))

    # S17

    async def _ask_end(self, key: TopicPartition) -> None:
        asked_s = self._trace.now_s
        end = (await self._admin.list_offsets([key]))[key]
        before, since_s = self._ends.get(key, (0, asked_s))
        is_possible = end >= before or self._history.may_be_lost(key, since_s)
        require(is_possible, f"S17: {key} ended at {before}, and ends at {end}", key)
        self._ends[key] = end, asked_s

    # S21

    async def _commit(self, key: TopicPartition) -> None:
        self._number += 1
        number, commit = self._number, self._commits.setdefault(key, Commit())
        commit.doubtful[number] = self._trace.now_s
        try:
            await self._admin.alter_group_offsets(GROUP, {key: number})
        except ApiError:
            self._trace.count("commit in doubt")
            raise
        del commit.doubtful[number]
        commit.former.clear()
        commit.value, commit.acked_s = number, self._trace.now_s
        self._trace.add(HOST, key, number)
        self._trace.count("offset committed")

    async def _compare(self, key: TopicPartition) -> None:
        commit, asked_s = self._commits.setdefault(key, Commit()), self._trace.now_s
        log_before = self._history.offsets_log(GROUP)
        found = (await self._admin.list_group_offsets(GROUP)).get(key)
        self._trace.add(HOST, key, found)
        possible = {commit.value, *commit.doubtful, *commit.former}
        if self._history.may_offsets_be_lost(GROUP, commit.acked_s):
            require(found is None or found <= self._number, f"S21: {found} of {key} is nobody's")
        else:
            sentence = f"S21: {found} is committed for {key}, and was one of {possible}"
            require(found in possible, sentence)
        log = self._history.offsets_log(GROUP)
        is_sure = log is log_before and log and log.high_watermark == log.log.end_offset
        commit.former = set() if is_sure else commit.former | {commit.value}
        commit.value, commit.acked_s = found, asked_s
        late = [n for n, sent_s in commit.doubtful.items() if sent_s < asked_s - _DOUBT_S]
        for each in (found, *late):
            commit.doubtful.pop(each, None)  # type: ignore[arg-type]
