"""The methods that wait for nothing, which the blocking consumer and that for asyncio share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from kdist.client.consumer.arguments import ToCommit, ignore
from kdist.client.consumer.core import Core, OnCommitted
from kdist.client.consumer.iteration import Iteration
from kdist.client.consumer.rebalancing import RebalanceListener
from kdist.model import NO_EPOCH, TopicPartition

T = TypeVar("T")


class ImmediateMethods:
    """The base of both consumers."""

    _iteration: Iteration
    if TYPE_CHECKING:

        @property
        def _core(self) -> Core:
            """An attribute of the one, a property of the other."""

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a method of the core where the core runs."""
        raise NotImplementedError

    # What is read

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Read these topics, or all whose names match a pattern, as a member of the group.

        A new call replaces the last. `listener` is called on rebalances, within `poll`.
        """
        self._call(self._core.subscribe, topics, listener)

    def subscription(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._core.subscribed

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group management."""
        self._iteration.settle()
        self._call(self._core.assign, partitions)
        self._give_back()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions assigned to this consumer."""
        return frozenset(self._core.partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these until `resume`; they stay assigned to this consumer."""
        self._give_back(partitions)
        self._call(self._core.pause, partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these again."""
        self._call(self._core.pause, partitions, False)

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._core.paused()

    # Positions

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Continue from `offset`; the `leader_epoch` beside it detects truncation (KIP-320)."""
        self._iteration.drop([partition])
        self._call(self._core.seek, partition, offset, leader_epoch)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue from the first record of these partitions; of all assigned if none is named."""
        self._iteration.drop(partitions)
        self._call(self._core.seek_to, "earliest", partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue from the end of these partitions; of all assigned if none is named."""
        self._iteration.drop(partitions)
        self._call(self._core.seek_to, "latest", partitions)

    def commit_async(
        self, offsets: ToCommit | None = None, on_committed: OnCommitted = ignore
    ) -> None:
        """Commit in the background; calls `on_committed(offsets, error)` there when done."""
        self._iteration.settle()
        self._call(self._core.commit_soon, offsets, on_committed)

    def _give_back(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Put back the records that iteration took and has not yielded yet; () means of any."""
        dropped = self._iteration.drop(partitions)
        if dropped is not None:
            self._call(self._core.give_back, *dropped)

    def _end_iteration(self, *, is_done: bool) -> None:
        """Before closing. Unless `is_done`, the records given last are not committed."""
        in_doubt = {} if is_done else self._iteration.last_given()
        self._iteration.drop()
        if not is_done:
            self._core.completed.step_back(in_doubt)
