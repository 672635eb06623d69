"""What a leader accepts of producers: what the topic's rules allow, and nothing out of order.

The rules follow from the topic's settings. `RefusedBatches` keeps idempotent producers in order
where the log cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, CorruptRecords, Error
from kdist.records.batch import MAGIC, Batch, BatchHeader, TimestampType, read_header
from kdist.records.compression import Codec
from kdist.records.validate import Rules
from kdist.storage.producers import BATCHES_KEPT, SEQUENCE_MAX, ProducerStates
from kdist.wire.primitives import Buffer

# The most that records may take when decompressed, where that is necessary (an old format, a
# compacted topic). It bounds the cost of a request with highly compressed zeros: the conversion
# holds some three times as much.
_BODY_BYTES_MAX = 64 << 20
_BODY_RATIO_MAX = 16

_TOPIC_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


def rules_of(settings: TopicSettings) -> Rules:
    """The rules for a topic's records, from its settings (pure)."""
    return Rules(
        message_bytes_max=settings.max_message_bytes,
        codec=_TOPIC_CODECS[settings.compression_type],
        is_compacted="compact" in settings.cleanup_policy,
        validates_compressed=settings.message_compressed_validation_enable,
        timestamp_type=_TIMESTAMP_TYPES[settings.message_timestamp_type],
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        body_bytes_max=max(_BODY_BYTES_MAX, _BODY_RATIO_MAX * settings.max_message_bytes),
    )


Key = tuple[str, int]

_NOTED_MAX = 1000


class _Refused(NamedTuple):
    """The earliest batch refused; `left`: how many more may come before the producer knows.

    A producer whose batch was refused for good, as it is too large, goes on until it is told that
    the next one was refused, too: then that one and four more may have been sent. Once those have
    come, it has given the refused batch up.
    """

    epoch: int
    sequence: int
    left: int = BATCHES_KEPT


class RefusedBatches:
    """A broker's refused batches of idempotent producers, so that none sent after is taken first.

    A producer has up to five requests in flight. If its first batch for a partition is refused, as
    this broker does not lead it yet, or the disk is full for a moment, the next may come when
    batches are accepted again. The log knows no such producer, and takes any first sequence from
    it, since it may have forgotten it (`storage/producers.py`). So the second batch would be
    appended, and the first, when it is sent again, be out of sequence for ever: lost, although the
    producer is idempotent (KAFKA-15591). What follows a refused batch is refused here, with
    OUT_OF_ORDER_SEQUENCE_NUMBER, and clients then send both again, in order. Kafka 4.5 does so for
    the first batch of an empty log only.

    Owner: `Writers`. While `noted` is empty there is nothing to do. It need not survive a restart,
    nor remember all: who is not in it fares as in Kafka before 4.5.
    """

    def __init__(self) -> None:
        self.noted: dict[tuple[int, Key], _Refused] = {}  # by producer id and partition

    def note(self, key: Key, records: Buffer | None) -> None:
        """Note what a produce request had for a partition, which was refused."""
        try:
            header = read_header(records or b"")
        except CorruptRecords:
            return
        if header.magic == MAGIC:
            self.note_batch(key, header)

    def note_batch(self, key: Key, header: BatchHeader) -> None:
        """Note that this batch was refused."""
        if header.producer_id < 0:
            return
        place = header.producer_id, key
        epoch, sequence = header.producer_epoch, header.base_sequence
        known = self.noted.get(place)
        if known is None or known.epoch != epoch or sequence <= known.sequence:
            self.noted[place] = _Refused(epoch, sequence)
        if len(self.noted) > _NOTED_MAX:
            del self.noted[next(iter(self.noted))]

    def acceptable(
        self, key: Key, batches: Sequence[Batch], producers: ProducerStates
    ) -> Sequence[Batch]:
        """The first of these batches, and those after it of which there is nothing noted.

        `ApiError` OUT_OF_ORDER_SEQUENCE_NUMBER for the first.
        """
        for number, (header, _) in enumerate(batches):
            if (header.producer_id, key) in self.noted:
                if number:
                    return batches[:number]
                self._check(key, header, producers)
        return batches

    def _check(self, key: Key, header: BatchHeader, producers: ProducerStates) -> None:
        place = header.producer_id, key
        refused = self.noted[place]
        ahead = (header.base_sequence - refused.sequence) & SEQUENCE_MAX
        follows = header.producer_epoch == refused.epoch and 0 < ahead <= SEQUENCE_MAX // 2
        if follows and refused.left and producers.producer(header.producer_id) is None:
            self.noted[place] = refused._replace(left=refused.left - 1)
            raise ApiError(
                Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence} after"
                f" {refused.sequence}, which was refused",
            )
        del self.noted[place]
