"""What both consumers can do beside returning records: methods of their core, which runs on a loop.

`Operation`s wait for brokers, so the consumer for asyncio has coroutines of these names; `Call`s
wait for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.core import Core
from kdist.client.consumer.interceptors import ConsumerInterceptors
from kdist.client.foreign import OtherNames
from kdist.client.metrics import Measured
from kdist.client.operation import Call, Operation
from kdist.model import TopicPartition

T = TypeVar("T")


class ConsumerMethods(Measured, OtherNames):
    """The base of both consumers."""

    _interceptors: ConsumerInterceptors | None
    if TYPE_CHECKING:

        @property
        def _core(self) -> Core:
            """An attribute of the one, a property of the other."""

        def _call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
            """Call a method of the core where the core runs."""

    # What is read

    subscribe = Call(Core.subscribe)
    unsubscribe = Operation(Core.unsubscribe)
    assign = Call(Core.assign)
    pause = Call(Core.pause)
    resume = Call(Core.resume)
    partitions_for = Operation(Core.partitions_for)

    def subscription(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._core.subscribed

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions assigned to this consumer."""
        return frozenset(self._core.partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._core.paused()

    # Positions

    seek = Call(Core.seek)
    seek_to_beginning = Call(Core.seek_to_beginning)
    seek_to_end = Call(Core.seek_to_end)
    seek_to_time = Operation(Core.seek_to_time)
    position = Operation(Core.position)
    lag = Call(Core.lag)
    high_watermark = Call(Core.high_watermark)
    offsets_for_times = Operation(Core.offsets_for_times)
    beginning_offsets = Operation(Core.beginning_offsets)
    end_offsets = Operation(Core.end_offsets)

    # Commits

    commit = Operation(Core.commit)
    commit_async = Call(Core.commit_async)
    committed = Operation(Core.committed)

    def _intercepted(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        """What a poll returns of these. Within its take, which is undone if interrupted here."""
        return records if self._interceptors is None else self._interceptors.on_consume(records)
