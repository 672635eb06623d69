"""A producer's interceptors: they see each record before it is sent, and its acknowledgement.

Those of Java's producer (KIP-42, KIP-512): called in the order of the setting `interceptors`, each
with what the one before it returned.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kdist.client.guard import Guard
from kdist.client.producer.message import Message
from kdist.client.producer.results import RecordMetadata, Sent
from kdist.model import NO_OFFSET, NO_TIMESTAMP
from kdist.records.record import Headers

NO_PARTITION = -1
Steps = Generator[Any, None, Sent]  # of `Core.add`


class ProducerRecord(NamedTuple):
    """A record as it was given to `send`, not encoded yet; `timestamp` is in ms since the epoch."""

    topic: str
    value: Any
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


class ProducerInterceptor:
    """Override the methods you need, and give an instance in the setting `interceptors`.

    What one raises is logged, once a minute, and breaks nothing.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Called by `send`, in its thread; what it returns is sent instead of the record."""
        return record

    def on_acknowledgement(
        self, metadata: RecordMetadata, error: BaseException | None, headers: Headers
    ) -> None:
        """A record is acknowledged, or has failed; `headers` are those that `on_send` returned.

        Called on the producer's event loop, so be quick; or in the thread of a `send` that raised:
        then partition, offset and timestamp are -1 unless they were given.
        """

    def close(self) -> None:
        """The producer is closed."""


class ProducerInterceptors:
    """The chain of a producer's interceptors."""

    def __init__(self, chain: Sequence[ProducerInterceptor], now_s: Callable[[], float]) -> None:
        self._chain = chain
        self._guard = Guard(now_s)

    def adding(self, topic: str, message: Message, add: Callable[[str, Message], Steps]) -> Steps:
        """The steps of `add`, for what the interceptors make of the message."""
        record = ProducerRecord(topic, *message)
        try:
            for each in self._chain:
                record = self._guard.call(record, each.on_send, record)
            topic, *rest = record
            sent = yield from add(topic, Message(*rest))
        except BaseException as error:
            # The steps of a `send` that gave up waiting are closed: the cause is what it raises.
            cause = error.__context__ if isinstance(error, GeneratorExit) else error
            self._refused(record, cause or error)
            raise
        sent.add_done_callback(partial(self._acknowledged, record))
        return sent

    def _refused(self, record: ProducerRecord, error: BaseException) -> None:
        partition = NO_PARTITION if record.partition is None else record.partition
        timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
        metadata = RecordMetadata(record.topic, partition, NO_OFFSET, timestamp)
        self._tell(metadata, error, record.headers)

    def _acknowledged(self, record: ProducerRecord, sent: Sent) -> None:
        self._tell(sent._found(), sent.exception(0), record.headers)

    def _tell(
        self, metadata: RecordMetadata, error: BaseException | None, headers: Headers
    ) -> None:
        for each in self._chain:
            self._guard.call(None, each.on_acknowledgement, metadata, error, headers)

    def close(self) -> None:
        for each in self._chain:
            self._guard.call(None, each.close)
