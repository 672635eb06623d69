"""Finds starting positions: the group's committed offset, else the partition's first or end offset.

They are looked up in the background for every partition without a position, until it has one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kdist.client.cluster import NoBroker, raise_worst
from kdist.client.consumer.commits import Commits
from kdist.client.consumer.context import ConsumerContext
from kdist.client.consumer.partition import Partition
from kdist.client.offsets import TIMESTAMPS, OffsetAndTimestamp, list_offsets_once
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition

logger = logging.getLogger(__name__)

_UNKNOWN = Error.UNKNOWN_TOPIC_OR_PARTITION


class NoOffset(ApiError):
    """The group has no committed offset for the partition, and `auto_offset_reset` is none."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(
            Error.OFFSET_OUT_OF_RANGE,
            f"no offset is committed for {partition}, and auto_offset_reset is none",
        )
        self.partition = partition


class Positions:
    """Looks up the positions of `partitions`. Owner: the loop."""

    def __init__(
        self,
        context: ConsumerContext,
        partitions: Mapping[TopicPartition, Partition],
        commits: Commits | None,
        on_found: Callable[[], None],
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._commits = commits
        self._on_found = on_found
        self._task: asyncio.Task[None] | None = None
        self._told: set[TopicPartition] = set()  # that they do not exist

    def kick(self) -> None:
        """Look up missing positions, unless that is already being done."""
        if self._task is None and self._missing():
            self._task = self._context.loop.create_task(self._look_up())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _missing(self) -> list[Partition]:
        return [
            each for each in self._partitions.values() if each.is_missing and not each.is_revoked
        ]

    async def _look_up(self) -> None:
        now_s = self._context.now_s
        patience_s = self._context.settings.default_api_timeout_ms / 1000
        end_s, failures = now_s() + patience_s, 0
        try:
            while missing := self._missing():
                try:
                    await self._find(missing)
                    end_s, failures = now_s() + patience_s, 0
                except (ApiError, NoBroker) as error:
                    if not self._may_pass(error, is_late=now_s() >= end_s):
                        raise
                    await self._context.back_off(failures)
                    failures += 1
                self._on_found()
        except (ApiError, NoBroker) as error:
            self._context.report(error)
        finally:
            self._task = None

    def _may_pass(self, error: ApiError | NoBroker, *, is_late: bool) -> bool:
        """Whether to go on looking. A leader that is away does not stop who reads others, and so is
        waited for as long as it takes; a partition that does not exist is a mistake.
        """
        if not self._context.cluster.may_pass(error):
            return False
        is_known = isinstance(error, NoBroker) or error.error is not _UNKNOWN
        is_reading = any(not each.is_missing for each in self._partitions.values())
        return not is_late or (is_reading and is_known)

    async def _find(self, missing: list[Partition]) -> None:
        """Find the positions of some of these; raises the worst error for the others at the end."""
        unset = [each for each in missing if each.reset_to is None]
        if unset:
            await self._begin_at_committed(unset)
        else:
            await self._begin_at_end(missing)

    async def _begin_at_committed(self, partitions: list[Partition]) -> None:
        keys = [each.key for each in partitions]
        committed = await self._commits.committed(keys) if self._commits else {}
        for partition in partitions:
            found = committed.get(partition.key)
            if partition.position is not None or partition.reset_to is not None:
                continue  # sought meanwhile
            if found is not None:
                partition.seek(found.offset, found.leader_epoch)
            elif self._context.settings.auto_offset_reset == "none":
                raise NoOffset(partition.key)
            else:
                partition.reset(self._context.settings.auto_offset_reset)

    async def _begin_at_end(self, partitions: list[Partition]) -> None:
        wanted = {each.key: each.reset_to for each in partitions}
        outcomes = await list_offsets_once(
            self._context.cluster,
            {key: TIMESTAMPS[to] for key, to in wanted.items() if to is not None},
            is_committed_only=self._context.settings.is_committed_only,
        )
        for partition in partitions:
            offset = outcomes[partition.key].answer
            if (
                partition.reset_to is not None
                and partition.reset_to == wanted[partition.key]
                and isinstance(offset, OffsetAndTimestamp)
            ):
                partition.seek(offset.offset)
                partition.reset_offset = offset.offset
        failed = {key: each for key, each in outcomes.items() if each.error_code}
        topics = {each.topic for each in self._context.cluster.leaders}
        for key, each in failed.items():
            is_wrong = Error.of(each.error_code) is _UNKNOWN and key.topic in topics
            if is_wrong and key not in self._told:
                self._told.add(key)
                logger.warning("%s does not exist: waiting for it (%s)", key, each.answer)
        raise_worst(failed)
