"""A partition's replica on this broker: what clients may append to it, and see of it.

    log start offset      last stable offset    high watermark      log end offset
           | committed, decided  | committed, open       | not committed      |

A record is committed when every in-sync replica has it. With the one replica there is for now that
is at once, or with `flush.before.expose` when this disk has it. Offsets of producers, bytes and
files are the log's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, Error
from kdist.model import NO_EPOCH, NO_OFFSET, LeaderAndIsr, TopicPartition
from kdist.records.batch import Batch, TimestampType
from kdist.records.compression import Codec
from kdist.records.validate import Rules, validate
from kdist.replication.delayed import Delayed, Waiting
from kdist.replication.exposure import ExposureWait, OnExposed
from kdist.replication.writer import Done, Writer, Writers
from kdist.storage.append import Appended
from kdist.storage.epochs import EpochEnd
from kdist.storage.flushing import Flusher
from kdist.storage.log import Log
from kdist.wire.varint import Buffer

READ_COMMITTED = 1  # of Fetch's and ListOffsets' isolation levels
ACKS_ALL = -1
NOBODY = LeaderAndIsr(leader=-1, leader_epoch=-1, isr=(), controller_epoch=-1, zk_version=-1)
NOTHING = Appended(NO_OFFSET, NO_OFFSET)
"""What became of an empty message set."""

# What records may take unpacked where they must be: an old format, a compacted topic. The
# conversion holds some three times that, so it bounds what a request of packed zeros can cost.
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


class PartitionWorld(NamedTuple):
    """What every partition is given by its owner, `Replicas`."""

    broker_id: int
    writers: Writers
    waiting: Waiting
    flusher: Flusher


class Partition:
    """Owner: `Replicas`. It hosts the replica until `close`; whoever keeps one asks `is_leader`."""

    __slots__ = (
        "_append",
        "_is_flushing",
        "_rules",
        "_world",
        "_writer",
        "group_rules",
        "is_leader",
        "is_prompt",
        "key",
        "leader_epoch",
        "log",
        "replicas",
        "state",
        "topic_id",
        "watchers",
    )

    def __init__(self, world: PartitionWorld, log: Log, topic_id: uuid.UUID) -> None:
        self._world = world
        self._writer = Writer(log, world.writers, self._grown)
        self._append = self._writer.append
        self.is_prompt = self._writer.is_prompt
        self._is_flushing = False
        self.key: TopicPartition = log.partition
        self.log = log
        self.topic_id = topic_id
        self.state = NOBODY
        self.replicas: tuple[int, ...] = ()
        self.is_leader = False
        self.leader_epoch = NO_EPOCH
        self.watchers: dict[Delayed, None] = {}
        # What a record set must keep for `append_group`; None while there is more to look at.
        self.group_rules: Rules | None = None
        self.configure(log.settings)

    def __repr__(self) -> str:
        return f"<Partition {self.key} epoch {self.leader_epoch} of {self.log!r}>"

    def configure(self, settings: TopicSettings) -> None:
        """Take new values of the topic's settings."""
        if settings is not self.log.settings:
            self.log.configure(settings)
            self._world.waiting.changed(self)  # by `flush.before.expose` more may be seen now
        self._rules = rules_of(settings)
        self._choose_group_rules()

    # Who leads

    def lead_or_follow(self, state: LeaderAndIsr, replicas: tuple[int, ...]) -> None:
        """Take what the controller says; it is newer than what was said before."""
        self.state, self.replicas = state, replicas
        self.leader_epoch = state.leader_epoch
        self.is_leader = state.leader == self._world.broker_id
        if self.is_leader and self.log.epochs.assign(state.leader_epoch, self.log.end_offset):
            self.log.save_epochs()
        self._choose_group_rules()
        self._world.waiting.changed(self)

    def resign(self) -> None:
        """Nobody here takes or gives records any more; who waits for that hears it."""
        self.is_leader = False
        self.state = self.state._replace(leader=-1)  # whom clients would else be sent back to
        self._choose_group_rules()
        self._world.waiting.changed(self)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call once nothing is being appended, perhaps at once."""
        self._writer.when_idle(callback)

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER, or for a client that knows an epoch, that it is wrong.

        FENCED_LEADER_EPOCH: the client's is older; UNKNOWN_LEADER_EPOCH: newer (KIP-320).
        """
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(Error.FENCED_LEADER_EPOCH)
            raise ApiError(Error.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise ApiError(Error.NOT_LEADER_OR_FOLLOWER)

    # Appending

    def append(
        self, records: Buffer, version: int, acks: int, now_ms: int, done: Done
    ) -> Appended | None:
        """Append what a Produce of `version` carries, as the leader.

        What became of it, or None if `done` will be told later, since the disk is slow. It is in
        this log then; `await_exposed` tells when it is on all in-sync replicas. Raises `ApiError`
        for what is refused, `DiskFailed`.
        """
        if not self.is_leader:
            raise ApiError(Error.NOT_LEADER_OR_FOLLOWER)
        settings = self.log.settings
        if acks == ACKS_ALL and self.is_under_min_isr:
            raise ApiError(Error.NOT_ENOUGH_REPLICAS)
        batches = validate(records, self._rules, api_version=version, now_ms=now_ms)
        if not batches:
            return NOTHING
        size = sum(len(data) for _, data in batches)  # as stored: smaller than it came, or larger
        if size > settings.segment_bytes:
            raise ApiError(Error.RECORD_LIST_TOO_LARGE, f"{size} bytes do not fit a segment")
        appended = self._append(batches, self.leader_epoch, now_ms, done)
        if self.watchers and appended is not None:
            self._grown()
        return appended

    def append_group(self, batches: Sequence[Batch], now_ms: int) -> Sequence[int]:
        """Append batches that keep `group_rules`, with one write: the first offset of each.

        What is appended is committed too. There are fewer offsets than batches if one cannot be
        appended like this: it and those behind it were not. Raises `ApiError`, and then none was;
        `DiskFailed`.
        """
        if self.group_rules is None:
            return ()
        start_offsets = self._writer.append_group(batches, self.leader_epoch, now_ms)
        if self.watchers and start_offsets:
            self._grown()
        return start_offsets

    def append_own(self, batches: Sequence[Batch], now_ms: int, done: Done) -> Appended | None:
        """Append batches that the broker itself has made; otherwise as `append`."""
        if not self.is_leader:
            raise ApiError(Error.NOT_LEADER_OR_FOLLOWER)
        appended = self._append(batches, self.leader_epoch, now_ms, done)
        if appended is not None:
            self._grown()
        return appended

    @property
    def is_under_min_isr(self) -> bool:
        """Too few replicas are in sync for acks=all.

        As many are needed as `min.insync.replicas` says, but no more than there are replicas, as in
        Kafka: a partition of one could else never be written with acks=all.
        """
        needed = min(self.log.settings.min_insync_replicas, len(self.replicas))
        return len(self.state.isr) < needed

    @property
    def is_append_time(self) -> bool:
        """The broker sets the timestamps of records."""
        return self._rules.is_append_time

    def _grown(self) -> None:
        """The log has: those who wait for records see to it when this turn of the loop ends."""
        if not self.log.settings.flush_before_expose:
            self._world.waiting.changed(self)

    def _choose_group_rules(self) -> None:
        """So that a usual produce looks at one thing, where another looks at all of these."""
        rules, settings = self._rules, self.log.settings
        is_usual = (
            self.is_leader
            and rules.is_plain
            and rules.message_bytes_max <= settings.segment_bytes
            and not settings.flush_before_expose
            and not self.is_under_min_isr
        )
        self.group_rules = rules if is_usual else None

    # Waiting for exposure

    def await_exposed(
        self, end_offset: int, timeout_ms: int, client: object, done: OnExposed
    ) -> None:
        """Call `done` with NONE once all below `end_offset` is committed; or with the error.

        REQUEST_TIMED_OUT, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR if it cannot be flushed.
        """
        wait = ExposureWait(self, end_offset, done)
        if not wait.attempt():
            self._world.waiting.add(wait, (self,), timeout_ms, client)

    def request_flush(self) -> None:
        """Have what is in the log flushed; those who wait for the high watermark hear of it."""
        if not self._is_flushing:
            self._is_flushing = True
            self._world.flusher.request(self.log, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        self._is_flushing = False
        if isinstance(error, ApiError):  # a disk that failed is the flusher's to tell
            for operation in tuple(self.watchers):
                if isinstance(operation, ExposureWait):
                    self._world.waiting.end(operation)
                    operation.done(error.error)

    def flushed(self) -> None:
        """The log was, by whomever it was asked for: the high watermark may have moved."""
        if self.log.settings.flush_before_expose:
            self._world.waiting.changed(self)

    # Reading

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed."""
        return self.log.exposable_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark."""
        return self.exposed[1]

    @property
    def exposed(self) -> tuple[int, int]:
        """The high watermark and the last stable offset, for less than one by one."""
        log = self.log
        high_watermark = log.exposable_offset
        undecided = log.producers.first_undecided_offset
        if undecided is None or undecided > high_watermark:
            return high_watermark, high_watermark
        return high_watermark, undecided

    def visible_end(self, replica_id: int, isolation_level: int) -> int:
        """The first offset that the one who asks may not see: a consumer (-1) or a follower."""
        if replica_id >= 0:
            return self.log.end_offset
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.log.exposable_offset

    def epoch_end(self, leader_epoch: int) -> EpochEnd:
        """The end of the newest epoch up to `leader_epoch`, as OffsetForLeaderEpoch answers it."""
        return self.log.epochs.end_offset_for(leader_epoch, self.log.end_offset)


def rules_of(settings: TopicSettings) -> Rules:
    """What a topic's settings ask of its records (pure)."""
    return Rules(
        message_bytes_max=settings.max_message_bytes,
        codec=_TOPIC_CODECS[settings.compression_type],
        is_compacted="compact" in settings.cleanup_policy,
        timestamp_type=_TIMESTAMP_TYPES[settings.message_timestamp_type],
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        body_bytes_max=max(_BODY_BYTES_MAX, _BODY_RATIO_MAX * settings.max_message_bytes),
    )
