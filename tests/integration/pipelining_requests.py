"""Requests of one connection for and of records, each with what its answer must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kdist.errors import Error
from kdist.protocol import fetch as fetch_api
from kdist.protocol import list_offsets, produce
from kdist.records.build import build_batch
from kdist.wire.crc32c import crc32c
from tests.integration.pipelining_asking import Asking, unlike
from tests.integration.pipelining_model import BATCH_BYTES_MAX, Log, Topic

NOW_MS = 1_700_000_000_000
_ACKS_ALL = -1
_FIRST_VERSION_OF_STARTS = 5


class Batch(NamedTuple):
    """One to be sent."""

    content: bytes
    records: int


class Placed:
    """The expected outcome of a batch: its offset in a log, or an error."""

    def __init__(self, topic: Topic, code: Error, offset: int = -1, log: Log | None = None) -> None:
        self._topic = topic
        self._incarnation = topic.incarnation
        self._code = code
        self._offset = offset
        self._log = log
        self._start = log.start if log is not None else 0

    def fault(self, result: Any, *, has_start: bool) -> str:
        """What is wrong about a result."""
        if result.error_code and self._topic.incarnation != self._incarnation:
            return ""  # the topic was deleted behind the request, which was still under way
        fault = unlike((result.error_code, result.base_offset), (self._code, self._offset))
        if not fault and has_start and self._log is not None:
            is_right = self._start <= result.log_start_offset <= self._log.start
            fault = "" if is_right else f"{result}: the log starts at {self._start}"
        return fault


class Script(Asking):
    """What one connection asks. Owner: its thread."""

    def batch(self, log: Log | None, size: int, *, is_idempotent: bool) -> Batch:
        """A batch of records that nobody else sends."""
        count = self.rng.choice((1, 1, 1, 2, 5))
        self._records += 1
        values = [
            b"%s %d %d " % (self.name.encode(), self._records, number)
            + self.rng.randbytes(size // count)
            for number in range(count)
        ]
        if not is_idempotent or log is None:
            return Batch(bytes(build_batch(values, timestamp_ms=NOW_MS)), count)
        batch = build_batch(
            values,
            timestamp_ms=NOW_MS,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=log.sequence,
        )
        return Batch(bytes(batch), count)

    def size(self) -> int:
        """A batch's size: mostly small."""
        chosen = self.rng.random()
        if chosen < 0.9:
            return self.rng.randrange(1500)
        if chosen < 0.97:
            return self.rng.randrange(1500, 64 << 10)
        return self.rng.randrange(64 << 10, 1 << 20)

    def produce(
        self, asked: Sequence[tuple[Topic, int]], acks: int, *, is_idempotent: bool, size: int
    ) -> None:
        """One batch for each partition; acks=0 is for what is not refused."""
        oldest = 7 if is_idempotent else 3
        version = self.version(produce.API, oldest)
        wanted, topics = [], []
        for topic, index in asked:
            batch, want = self._place(topic, index, acks, size, is_idempotent=is_idempotent)
            wanted.append(want)
            part = produce.ProducePartition(index=index, records=batch.content)
            topics.append(produce.ProduceTopic(name=topic.name, partition_data=[part]))
        request = produce.ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=topics)

        def check(answer: Any) -> str:
            results = [each.partition_responses[0] for each in answer.responses]
            faults = [
                want.fault(result, has_start=version >= _FIRST_VERSION_OF_STARTS)
                for want, result in zip(wanted, results, strict=True)
            ]
            return "; ".join(filter(None, faults))

        what = f"acks={acks} {[(topic.name, index) for topic, index in asked]} {size}"
        self.ask(produce.API, version, request, what, check if acks else None)

    def _place(
        self, topic: Topic, index: int, acks: int, size: int, *, is_idempotent: bool
    ) -> tuple[Batch, Placed]:
        """A batch for a partition, and what becomes of it."""
        log = topic.logs[index] if index < len(topic.logs) else None
        batch = self.batch(log, size, is_idempotent=is_idempotent)
        if log is None:
            return batch, Placed(topic, Error.UNKNOWN_TOPIC_OR_PARTITION)
        if len(batch.content) > BATCH_BYTES_MAX:
            return batch, Placed(topic, Error.MESSAGE_TOO_LARGE)
        offset = log.append(*batch)
        if is_idempotent:
            log.sequence += batch.records
            log.latest = (batch.content, offset)
        if acks == _ACKS_ALL or not self.cluster.is_careful:
            log.shown = log.end
        return batch, Placed(topic, Error.NONE, offset, log)

    def produce_again(self, topic: Topic, index: int) -> None:
        """The idempotent producer's latest batch, as if its answer had been lost."""
        log = topic.logs[index]
        content, offset = log.latest
        if not content or offset < log.start:
            return
        want = Placed(topic, Error.NONE, offset, log)
        part = produce.ProducePartition(index=index, records=content)
        data = produce.ProduceTopic(name=topic.name, partition_data=[part])
        request = produce.ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data])
        version = self.version(produce.API, 7)

        def check(answer: Any) -> str:
            return want.fault(answer.responses[0].partition_responses[0], has_start=True)

        self.ask(produce.API, version, request, f"again {offset}", check)

    def produce_refused(self, topic: Topic, acks: int = 1) -> None:
        """What its checksum denies, or acks that there are none of."""
        content = bytearray(self.batch(None, 100, is_idempotent=False).content)
        content[-1] ^= 1
        code = Error.CORRUPT_MESSAGE
        if acks and self.rng.random() < 0.3:
            acks, code = 7, Error.INVALID_REQUIRED_ACKS
        elif not topic.logs:
            code = Error.UNKNOWN_TOPIC_OR_PARTITION
        part = produce.ProducePartition(index=0, records=bytes(content))
        data = produce.ProduceTopic(name=topic.name, partition_data=[part])
        request = produce.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])

        def check(answer: Any) -> str:
            return unlike(answer.responses[0].partition_responses[0].error_code, code)

        version = self.version(produce.API, 3)
        self.ask(produce.API, version, request, "refused", check if acks else None)

    # Reading

    def list_offset(self, topic: Topic, index: int, timestamp: int) -> None:
        version = self.version(list_offsets.API, 1)
        code, first, last = Error.UNKNOWN_TOPIC_OR_PARTITION, -1, -1
        if index < len(topic.logs):
            log = topic.logs[index]
            code, first, last = Error.NONE, log.start, log.start
            if timestamp == list_offsets.LATEST_TIMESTAMP:
                first, last = self.visible_end(log), log.end
        part = list_offsets.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        request = list_offsets.ListOffsetsRequest(
            topics=[list_offsets.ListOffsetsTopic(name=topic.name, partitions=[part])]
        )

        def check(answer: Any) -> str:
            result = answer.topics[0].partitions[0]
            is_right = result.error_code == code and first <= result.offset <= last
            return "" if is_right else f"{result}, and not {code}, {first} to {last}"

        what = f"{topic.name} {index} {timestamp}"
        self.ask(list_offsets.API, version, request, what, check)

    def fetch(self, asked: Sequence[tuple[Topic, int, int]], **limits: int) -> None:
        """Outside of sessions: topic, partition and offset of each."""
        looks = [Look(*each, self.visible_end) for each in asked]
        request = fetch_api.FetchRequest(
            max_wait_ms=limits["wait_ms"],
            min_bytes=limits["min_bytes"],
            max_bytes=limits["max_bytes"],
            topics=[look.asked(limits["partition_bytes"]) for look in looks],
        )
        must_have = limits["wait_ms"] == 0 or limits["min_bytes"] <= 1

        def check(answer: Any) -> str:
            results = [part for topic in answer.responses for part in topic.partitions]
            if answer.error_code or len(results) != len(looks):
                return f"error {answer.error_code}, {len(results)} results"
            faults = [
                look.fault(each, is_at_once=must_have)
                for look, each in zip(looks, results, strict=True)
            ]
            lacks = must_have and any(look.has_records for look in looks)
            if lacks and not any(each.records or each.error_code for each in results):
                faults.append("no records, where there are some")
            return "; ".join(filter(None, faults))

        what = f"{[(look.topic.name, look.index, look.offset) for look in looks]} {limits}"
        version = self.version(fetch_api.API, 4, fetch_api.NEWEST_BY_NAME)
        self.ask(fetch_api.API, version, request, what, check)


class Look:
    """One partition of a fetch: where it looks, and what was there when it was asked."""

    def __init__(
        self, topic: Topic, index: int, offset: int, visible_end: Callable[[Log], int]
    ) -> None:
        self.topic = topic
        self.index = index
        self.offset = offset
        self._incarnation = topic.incarnation
        self._log = topic.logs[index] if index < len(topic.logs) else None
        self._start, self._end, self._changes = 0, 0, 0
        if self._log is not None:
            self._start, self._end = self._log.start, visible_end(self._log)
            self._changes = self._log.changes

    @property
    def has_records(self) -> bool:
        return self._log is not None and self._start <= self.offset < self._end

    def asked(self, bytes_max: int) -> fetch_api.FetchTopic:
        part = fetch_api.FetchPartition(
            partition=self.index, fetch_offset=self.offset, partition_max_bytes=bytes_max
        )
        return fetch_api.FetchTopic(topic=self.topic.name, partitions=[part])

    def fault(self, result: Any, *, is_at_once: bool) -> str:
        """What is wrong about a result."""
        log = self._log
        if log is None:
            is_same = self.topic.incarnation == self._incarnation
            wanted = Error.UNKNOWN_TOPIC_OR_PARTITION
            return unlike(result.error_code, wanted) if is_same else ""
        may_have_waited = not (self.has_records and is_at_once)  # and found other things then
        if may_have_waited and (
            log.changes != self._changes or self.topic.incarnation != self._incarnation
        ):
            return ""
        if not self._start <= self.offset <= log.end:
            return "" if result.error_code in (0, Error.OFFSET_OUT_OF_RANGE) else "no such error"
        if result.error_code:
            is_ahead = self.offset > self._end and result.error_code == Error.OFFSET_OUT_OF_RANGE
            return "" if is_ahead else f"error {result.error_code}"
        if result.high_watermark < self._end:
            return f"the high watermark is {result.high_watermark}, and {self._end} was reached"
        records = bytes(result.records or b"")
        fault = log.difference(self.offset, records)
        if fault:
            return f"{self.index} from {self.offset}: {fault}"
        return crc_faults(records)


def crc_faults(records: bytes) -> str:
    """Whether whole batches have their checksums."""
    at = 0
    while len(records) - at > 61:
        size = 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        if at + size > len(records):
            return ""
        crc = int.from_bytes(records[at + 17 : at + 21], "big")
        if crc != crc32c(records[at + 21 : at + size]):
            return "a batch's checksum is wrong"
        at += size
    return ""
