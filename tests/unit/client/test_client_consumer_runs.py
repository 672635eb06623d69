"""Runs of small batches, and fetches repeated: less work, the same records, sessions agree."""

from __future__ import annotations

import asyncio
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.consumer.batch import RUN_BYTES_MAX, BatchRun, CorruptFetch, NotDecoded
from kdist.client.consumer.fetch_session import FetchSession
from kdist.client.consumer.fetcher import RepeatedFetch
from kdist.client.consumer.iteration import Iteration
from kdist.client.consumer.opening import Opening, Ready, open_fetched
from kdist.client.consumer.partition import CompletedFetches, Partition
from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol import fetch
from kdist.protocol.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from kdist.protocol.frame import (
    SIZE_BYTES,
    RequestHeader,
    decode_request,
    encode_request,
    put_correlation_id,
)
from kdist.records.batch import HEADER_SIZE, seal, stamp_append_time
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from tests.refusals import refused
from tests.simulator.cluster import Cluster
from tests.unit.client.client_group_world import TOPIC, Group, consumer_on, with_topic

KEY = TopicPartition("clicks", 3)
NOW = 1_700_000_000_000


def numbered(first: int, count: int, **options: Any) -> bytearray:
    numbers = range(first, first + count)
    return build_batch(
        [b"%d" % number for number in numbers],
        [b"k%d" % number for number in numbers],
        [[("h", b"%d" % number)] for number in numbers],
        [NOW + number * 7 % 5 for number in numbers],
        timestamp_ms=NOW,
        base_offset=first,
        **options,
    )


def opened(data: bytes | bytearray, position: int = 0, **options: Any) -> list[Ready]:
    options = {"run_bytes_max": RUN_BYTES_MAX} | options
    return list(open_fetched(data, Opening(KEY, position, **options)))


def completed_of(
    data: bytes | bytearray, position: int = 0, **options: Any
) -> tuple[CompletedFetches, Partition]:
    completed, partition = CompletedFetches(), Partition(KEY)
    partition.seek(position)
    completed.put(partition, opened(data, position, **options))
    return completed, partition


def log_append_time(first: int, count: int) -> bytearray:
    batch = numbered(first, count)
    stamp_append_time(batch, 0, NOW + first)
    return batch


def transactional(first: int, count: int) -> bytearray:
    return numbered(first, count, producer_id=7, base_sequence=0, is_transactional=True)


KINDS = {
    "plain": numbered,
    "of another epoch": lambda first, count: numbered(first, count, leader_epoch=4),
    "compressed": lambda first, count: numbered(first, count, codec=Codec.GZIP),
    "transactional": transactional,
    "control": lambda first, _: numbered(first, 1, is_control=True),
    "log append time": log_append_time,
    "behind a gap": lambda first, count: numbered(first + 3, count),
}


def log_of(kinds: list[tuple[str, int]]) -> bytes:
    data, end = b"", 0
    for kind, count in kinds:
        data += KINDS[kind](end, count)
        end = opened(data)[-1].next_offset
    return data


logs = st.lists(
    st.tuples(st.just("plain") | st.sampled_from(sorted(KINDS)), st.integers(1, 4)),
    min_size=1,
    max_size=12,
).map(log_of)


def fields(record: Any) -> tuple[Any, ...]:
    whose = record.topic, record.partition, record.leader_epoch, record.timestamp_type
    return record.offset, record.timestamp, record.key, record.value, record.headers, *whose


ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
ANSWER = FetchResponse(responses=[])
LATE = ApiError(Error.REQUEST_TIMED_OUT)


class Peer:
    """Notes what is sent, in place of a client's connection."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.sent: list[tuple[int, FetchRequest]] = []

    def version_of(self, _api: object, _newest: int) -> int:
        return self.version

    def encode(self, request: FetchRequest, version: int, correlation_id: int) -> bytearray:
        return encode_request(RequestHeader(fetch.API.key, version, correlation_id, "me"), request)

    def repeat(self, frame: bytearray, *_: object) -> None:
        put_correlation_id(frame, len(self.sent) + 7)
        header, request = decode_request(bytes(frame[SIZE_BYTES:]))
        assert len(frame) == SIZE_BYTES + int.from_bytes(frame[:SIZE_BYTES], "big")
        self.sent.append((header.correlation_id, request))


def request(offset: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[asked])]
    return FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=topics)


def repeated(peer: Any) -> RepeatedFetch:
    return RepeatedFetch(peer, request(0), ZERO, 0, 30_000)


def as_read(version: int, offset: int) -> FetchRequest:
    """The request as a broker reads it, if it was encoded by the general path."""
    _, found = decode_request(bytes(Peer(version).encode(request(offset), version, 1)[SIZE_BYTES:]))
    assert isinstance(found, FetchRequest)
    return found


KEYS = [TopicPartition(topic, number) for topic in "ab" for number in range(2)]
WANTED = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3), min_size=1)


def asked(offsets: dict[TopicPartition, int]) -> dict[TopicPartition, FetchPartition]:
    return {
        key: FetchPartition(partition=key.partition, fetch_offset=offset, partition_max_bytes=1)
        for key, offset in offsets.items()
    }


class Broker:
    """The broker's side by KIP-227: what it would fetch for each request."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.id = 0
        self.epoch = 0
        self.known: dict[TopicPartition, FetchPartition] = {}

    def fetch(self, session: FetchSession, wanted: dict[TopicPartition, FetchPartition]) -> object:
        said = session.next_request(wanted)
        named = {
            TopicPartition(topic.topic, each.partition): each
            for topic in said.topics
            for each in topic.partitions
        }
        if said.session_epoch == -1:
            session.answered(0, said)
            return named
        if said.session_epoch == 0:
            self.id, self.epoch = self.rng.randrange(1, 99), 1
            self.known = named
            session.answered(self.id, said)
            return named
        if said.session_id != self.id:
            session.failed(Error.FETCH_SESSION_ID_NOT_FOUND)
            return None
        assert said.session_epoch == self.epoch
        self.epoch += 1
        for topic in said.forgotten:
            for number in topic.partitions:
                del self.known[TopicPartition(topic.topic, number)]
        self.known |= named
        session.answered(self.id, said)
        return dict(self.known)


@given(log=logs, position=st.integers(0, 20), is_committed_only=st.booleans())
def test_records_are_those_of_the_single_batches(
    log: bytes, position: int, is_committed_only: bool
) -> None:
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)] if is_committed_only else None
    options: dict[str, Any] = {"aborted": aborted, "decoders": (bytes.decode, int)}
    alone = opened(log, position, run_bytes_max=0, **options)
    completed, partition = completed_of(log, position, **options)
    found = [fields(record) for record in completed.take_records(1000)]
    assert found == [
        fields(record)
        for each in alone
        if each.batch is not None
        for record in each.batch.records()
    ]
    assert partition.position == max([position, *(each.next_offset for each in alone)])
    assert partition.ready_bytes == 0


@given(log=logs, wanted=st.lists(st.integers(0, 7), min_size=1, max_size=40))
def test_records_and_batches_may_be_taken_in_turn(log: bytes, wanted: list[int]) -> None:
    """0 takes two batches; any other number takes that many records."""
    completed, partition = completed_of(log)
    expected = [record.offset for record in completed_of(log)[0].take_records(1000)]
    behind = [*expected[1:], 1 << 60]
    found: list[int] = []
    for count in wanted:
        if count:
            found += [record.offset for record in completed.take_records(count)]
        else:
            found += [offset for batch in completed.take_batches(2) for offset in batch.offsets()]
        assert found == expected[: len(found)]
        if found:
            assert partition.position is not None
            assert found[-1] < partition.position <= behind[len(found) - 1]
    found += [record.offset for record in completed.take_records(1000)]
    assert found == expected
    assert partition.ready_bytes == 0


def test_poll_batches_returns_each_batch_as_it_is_in_the_log() -> None:
    batches = [numbered(0, 3), numbered(3, 1), numbered(4, 2)]
    completed, partition = completed_of(b"".join(batches), 1)
    assert isinstance(partition.ready[0].batch, BatchRun)
    found = completed.take_batches(2) + completed.take_batches(2)
    assert [bytes(each.encoded) for each in found] == batches
    assert [each.values() for each in found] == [[b"1", b"2"], [b"3"], [b"4", b"5"]]
    assert [each.keys() for each in found] == [[b"k1", b"k2"], [b"k3"], [b"k4", b"k5"]]
    assert [each.timestamps() for each in found[1:]] == [[NOW + 1], [NOW + 3, NOW]]
    assert pickle.loads(pickle.dumps(found[2])).values() == [b"4", b"5"]
    assert (partition.position, partition.ready_bytes) == (6, 0)


def test_a_large_batch_is_not_part_of_a_run() -> None:
    large = build_batch([bytes(RUN_BYTES_MAX)], timestamp_ms=NOW)
    (one, two) = opened(large + numbered(1, 1))
    assert not isinstance(one.batch, BatchRun)
    assert (one.next_offset, two.next_offset) == (1, 2)


def test_a_record_of_a_run_can_be_pickled() -> None:
    completed, _ = completed_of(numbered(0, 1) + numbered(1, 2))
    for record in completed.take_records(5):
        assert fields(pickle.loads(pickle.dumps(record))) == fields(record)


def test_a_wrong_checksum_is_raised_after_the_whole_batches() -> None:
    broken = numbered(3, 1)
    broken[-1] ^= 1
    completed, partition = completed_of(numbered(0, 2) + numbered(2, 1) + broken + numbered(4, 1))
    assert [record.value for record in completed.take_records(9)] == [b"0", b"1", b"2"]
    with pytest.raises(CorruptFetch, match="clicks-3, at offset 3: CRC is"):
        completed.take_records(9)
    assert partition.position == 3


@pytest.mark.parametrize("is_by_batch", [False, True])
def test_damage_below_a_valid_checksum_is_raised_after_the_whole_batches(
    is_by_batch: bool,
) -> None:
    broken = numbered(3, 1)
    broken[HEADER_SIZE] = 0  # the length of its record
    seal(broken, 0, len(broken))
    completed, partition = completed_of(numbered(0, 2) + numbered(2, 1) + broken + numbered(4, 1))
    if is_by_batch:
        found = completed.take_batches(9)
        assert [each.values() for each in [*found[:2], found[3]]] == [[b"0", b"1"], [b"2"], [b"4"]]
        with pytest.raises(CorruptFetch, match="clicks-3, at offset 3: "):
            found[2].values()
        return
    assert [record.value for record in completed.take_records(9)] == [b"0", b"1", b"2"]
    with pytest.raises(CorruptFetch, match="clicks-3, at offset 3: "):
        completed.take_records(9)
    assert partition.position == 3


def test_records_before_one_that_cannot_be_decoded_are_returned() -> None:
    def refuse_three(value: bytes) -> int:
        if value == b"3":
            raise ValueError("three")
        return int(value)

    log = numbered(0, 2) + numbered(2, 3) + numbered(5, 1)
    completed, partition = completed_of(log, decoders=(None, refuse_three))
    assert [record.value for record in completed.take_records(9)] == [0, 1, 2]
    with pytest.raises(NotDecoded, match="clicks-3, offset 3"):
        completed.take_records(9)
    assert partition.position == 3
    assert [each.offsets() for each in completed.take_batches(9)] == [range(3, 5), range(5, 6)]
    assert partition.ready_bytes == 0


@given(st.integers(0, 6))
def test_iteration_over_a_run_tracks_its_position(count: int) -> None:
    completed, partition = completed_of(b"".join(numbered(first, 2) for first in (0, 2, 4)))
    iteration = Iteration()
    iteration.begin(*completed.take_run(10))  # type: ignore[arg-type]
    left = iteration.left
    for _ in range(count):
        next(left)
    iteration.settle()
    assert partition.position == count
    iteration.hold()
    assert list(left) == []
    iteration.settle()
    assert partition.position == count
    assert iteration.go_on() is (partition if count < 6 else None)
    assert [record.offset for record in iteration.left] == list(range(count, 6))


@pytest.mark.parametrize("version", [4, 7, 11, 12])
async def test_each_request_equals_the_general_paths_and_reports_that_it_was_sent(
    version: int,
) -> None:
    peer = Peer(version)
    fetches, told = repeated(peer), []
    next_offsets = iter([1 << 40, 5, None])
    run = asyncio.ensure_future(
        fetches.run(3, lambda _: next(next_offsets), lambda: told.append(len(peer.sent)))
    )
    await asyncio.sleep(0)
    for _ in range(3):
        assert not fetches.done()
        fetches.set_result(ANSWER)
    await run
    assert [found for found, _ in peer.sent] == [7, 8, 9]
    assert [found for _, found in peer.sent] == [as_read(version, each) for each in (3, 1 << 40, 5)]
    assert told == [2, 3, 3]
    assert fetches.done()


async def test_an_exception_is_raised_where_the_fetch_is_run() -> None:
    def refuse(_: FetchResponse) -> int | None:
        raise LATE

    def fail(_: FetchResponse) -> int | None:
        raise ValueError("a bug")

    told: list[str] = []
    fetches = repeated(Peer(12))
    run = asyncio.ensure_future(fetches.run(3, refuse, lambda: told.append("now")))
    await asyncio.sleep(0)
    fetches.set_result(ANSWER)
    with refused(Error.REQUEST_TIMED_OUT):
        await run
    assert told == ["now"]  # a fetch may have been completed before
    run = asyncio.ensure_future(fetches.run(3, fail, lambda: None))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="a bug"):
        fetches.set_result(ANSWER)  # the loop's handler hears of it
    with pytest.raises(ValueError, match="a bug"):
        await run
    run = asyncio.ensure_future(fetches.run(3, refuse, lambda: None))
    await asyncio.sleep(0)
    fetches.set_exception(LATE)
    with refused(Error.REQUEST_TIMED_OUT):
        await run
    run = asyncio.ensure_future(fetches.run(3, refuse, lambda: None))
    await asyncio.sleep(0)
    run.cancel()
    await asyncio.wait([run])
    assert fetches.done()  # so nobody passes it an answer


@pytest.mark.played(by=with_topic, partitions=2)
async def test_a_consumer_of_one_partition_encodes_its_request_once(
    cluster: Cluster, group: Group, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = Client.encode

    def noted(self: Client, request: Any, version: int, correlation_id: int) -> bytearray:
        if self._loop is cluster.loop:  # not what an earlier test has left
            encoded.append(request.api.name)
        return encode(self, request, version, correlation_id)

    consumer = consumer_on(cluster, "reader")
    consumer.assign([ZERO])
    consumer.seek_to_beginning()
    monkeypatch.setattr(Client, "encode", noted)
    for number in range(20):
        await group.produce(2)
        found = await consumer.poll(10)
        assert [record.offset for record in found] == [number]
    assert encoded.count("Fetch") == 2  # for two offsets, to see where the offset is encoded
    await consumer.close()


@pytest.mark.played(by=with_topic, partitions=2)
async def test_seeks_pauses_and_other_partitions_end_the_repetition(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(20)
    consumer = consumer_on(cluster, "reader", fetch_max_wait_ms=400)
    consumer.assign([ZERO])
    consumer.seek_to_beginning()
    assert await values(consumer, 10) == [2 * each for each in range(10)]
    await asyncio.sleep(0.1)  # a fetch waits at the end
    consumer.seek(ZERO, 8)
    assert await values(consumer, 2) == [16, 18]
    await asyncio.sleep(0.1)
    consumer.pause(ZERO)
    await group.produce(2)
    assert await consumer.poll(2) == []
    consumer.resume(ZERO)
    assert await values(consumer, 1) == [20]
    await asyncio.sleep(0.1)
    consumer.assign([ZERO, ONE])
    consumer.seek_to_beginning(ONE)
    assert sorted(await values(consumer, 11)) == [2 * each + 1 for each in range(11)]
    consumer.assign([ONE])
    await group.produce(2)
    assert await values(consumer, 1) == [23]
    await consumer.close()


async def values(consumer: Any, count: int) -> list[int]:
    """The values of this many records."""
    found: list[int] = []
    while len(found) < count:
        records = await consumer.poll(10)
        assert records, f"after {found} nothing came in ten seconds"
        found += [int(record.value) for record in records]
    return found


@given(st.lists(WANTED, min_size=1, max_size=8), st.integers(), st.sets(st.integers(0, 7)))
def test_the_broker_fetches_exactly_the_wanted_partitions(
    steps: list[dict[TopicPartition, int]], seed: int, forgotten: set[int]
) -> None:
    session, broker = FetchSession(), Broker(seed)
    for number, offsets in enumerate(steps):
        if number in forgotten:
            broker.id = -5  # the broker has dropped the session
        wanted = asked(offsets)
        fetched = broker.fetch(session, wanted) or broker.fetch(session, wanted)
        assert fetched == wanted


def test_one_partition_is_fetched_without_a_session() -> None:
    said = FetchSession().next_request(asked({KEYS[0]: 5}))
    assert (said.session_id, said.session_epoch) == (0, -1)


def test_unchanged_partitions_are_not_sent_again() -> None:
    session = FetchSession()
    session.answered(7, session.next_request(asked({KEYS[0]: 5, KEYS[1]: 5})))
    said = session.next_request(asked({KEYS[0]: 5, KEYS[1]: 6}))
    assert (said.session_id, said.session_epoch) == (7, 1)
    assert [(t.topic, [p.partition for p in t.partitions]) for t in said.topics] == [("a", [1])]


def test_after_a_failure_a_full_request_is_sent() -> None:
    session = FetchSession()
    session.answered(7, session.next_request(asked({KEYS[0]: 5, KEYS[1]: 5})))
    session.failed(Error.NETWORK_EXCEPTION)
    said = session.next_request(asked({KEYS[0]: 5, KEYS[1]: 5}))
    assert (said.session_id, said.session_epoch) == (7, 0)  # and the broker may close the old one
    assert len(said.topics[0].partitions) == 2
