"""In some seeds: a second operator, who asks for all kinds of things while faults go on.

Preferred leaders are elected, groups and their offsets come and go, quotas and settings change that
decide what may be lost: flushes, unclean elections, retention, the cleanup policy. Errors are only
noted; what a calm cluster answers, `calm.py` checks. All draws are of a stream of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kdist.client.admin.clients import AsyncAdmin
from kdist.errors import KdistError
from kdist.model import TopicPartition
from tests.simulator.cluster import PORT
from tests.simulator.record import require
from tests.simulator.shape import MORTAL, TALLIES, TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

HOST = "asker"
_SHARE = 0.35  # of seeds
_GROUP = "askers"
_PLAIN = {
    "flush.before.expose": ("true", "false"),
    "unclean.leader.election.enable": ("true", "false", "false"),
    "retention.ms": ("4000", "10000", "3600000"),
}
_OF_TALLIES = {"cleanup.policy": ("compact", "compact,delete", "delete")}


class Asking:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._trace = history.trace
        self._rng = history.cluster.stream(HOST)
        self._pause_s = self._rng.choice((0.5, 2))
        self._is_over = False
        self._offsets: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        if self._rng.random() < _SHARE:
            self._admin = AsyncAdmin(
                [f"m{each}:{PORT}" for each in history.shape.broker_ids],
                request_timeout_ms=4_000,
                default_api_timeout_ms=6_000,
                network=history.cluster.network.host(HOST),
            )
            process = history.cluster.process(HOST)
            self._task = history.cluster.loop.create_task(process.run(self._work()))

    async def end(self) -> None:
        """Finish what is under way."""
        self._is_over = True
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        asked = (
            *(self._change, self._change, self._change_offsets, self._delete_group),
            *(self._elect, self._change_quota, self._look),
        )
        async with self._admin:
            while not self._is_over:
                await asyncio.sleep(self._rng.uniform(0, 2 * self._pause_s))
                ask = self._rng.choice(asked)
                if HOST in self._history.script.idle:
                    continue
                try:
                    await ask()
                except KdistError as error:
                    self._trace.note(f"{HOST}: {error}")

    async def _change(self) -> None:
        """A setting that decides what may be lost, or go."""
        has_tallies = bool(self._history.shape.tallies)
        topic = self._rng.choice((TOPIC, *MORTAL, *([TALLIES] if has_tallies else ())))
        choices = _OF_TALLIES if topic == TALLIES else _PLAIN
        name = self._rng.choice(sorted(choices))
        value = self._rng.choice(choices[name])
        if topic != TALLIES and topic not in self._history.known.counts():
            return
        self._trace.note(f"{HOST} sets {name}={value} of {topic}")
        self._history.copies.will_set(topic, name, value)
        given = {name: value}
        if given == {"flush.before.expose": "true"}:
            given["flush.ms"] = "500"  # else what nobody waits for is exposed to nobody
        await self._admin.incremental_alter_topic_configs(topic, given)
        self._trace.count(f"{name} was set")

    async def _elect(self) -> None:
        elected = await self._admin.elect_leaders()
        self._trace.count("preferred leader elected", sum(elected.values()))

    async def _change_offsets(self) -> None:
        key = self._rng.choice(self._history.stable_partitions())
        if self._rng.random() < 0.6:
            await self._admin.alter_group_offsets(_GROUP, {key: self._rng.randint(0, 50)})
        else:
            await self._admin.delete_group_offsets(_GROUP, [key])
            self._trace.count("group's offsets deleted")

    async def _delete_group(self) -> None:
        asked_s = self._trace.now_s
        await self._admin.delete_groups([_GROUP])
        self._trace.count("group deleted")
        left = await self._admin.list_group_offsets(_GROUP)
        is_lost = self._history.may_offsets_be_lost(_GROUP, asked_s)
        require(not left or is_lost, f"S21: {_GROUP} was deleted, and has committed {left}")

    async def _change_quota(self) -> None:
        rate = self._rng.choice((10**6, 10**7))
        await self._admin.alter_client_quotas(HOST, {"consumer_byte_rate": rate})
        found = self._history.cluster.ensemble.tree.exists(f"/config/clients/{HOST}")
        require(found is not None, f"S9: the quota of {HOST} was set, and is not in ZooKeeper")

    async def _look(self) -> None:
        match self._rng.randrange(5):
            case 0:
                await self._admin.list_groups()
            case 1:
                await self._admin.describe_groups([_GROUP])
            case 2:
                await self._admin.describe_log_dirs()
            case 3:
                await self._admin.list_partition_reassignments()
            case _:
                now_ms = self._history.cluster.clock.now_ms()
                keys = self._history.stable_partitions()
                await self._admin.list_offsets(keys, now_ms - self._rng.randint(0, 20_000))
