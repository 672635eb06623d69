"""The fast path of produces: it gives the general path's answers and leaves the same log."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.fast_path.produce import FLUSHED_BYTES
from kdist.broker.handlers.produce import ProduceHandler
from kdist.config.topic import TopicSettings
from kdist.errors import DiskFailed, Error
from kdist.model import OFFSETS_TOPIC, TopicPartition
from kdist.protocol.frame import (
    RequestHeader,
    decode_request,
    decode_response,
)
from kdist.protocol.produce import API, ProduceTopic
from kdist.records.compression import Codec
from kdist.replication.delayed import DelayedOperation
from tests.examples import examples
from tests.unit.broker.broker_produces import Broker, Peer, errors_of, fields_of, frame_of
from tests.unit.replication.replication_world import BROKER, CLICKS, VIEWS, World, batch, values_in

VERSIONS = range(3, 12)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)


@pytest.fixture
def broker() -> Broker:
    """A broker that has learned the request."""
    broker = Broker()
    broker.produce(Peer(), b"first")
    assert broker.registered is not None
    return broker


# Answers are those of the general path

SEQUENCES = st.sampled_from([(-1, -1), (5, 0), (5, 1), (5, 2), (5, 3), (5, 7), (6, 0)])
BATCHES = st.tuples(st.lists(st.binary(max_size=200), min_size=1, max_size=4), SEQUENCES)


@examples(60)
@given(
    st.sampled_from(VERSIONS),
    st.sampled_from([1, -1]),
    st.lists(st.lists(BATCHES, max_size=8), max_size=5),
)
def test_answers_and_log_equal_those_of_the_general_path(
    version: int, acks: int, ticks: list[list[tuple[list[bytes], tuple[int, int]]]]
) -> None:
    brokers = Broker(), Broker(has_fast_path=False)
    peers = Peer(), Peer()
    first = [[([b"first"], (-1, -1))]]
    for number, tick in enumerate([*first, *ticks]):
        for values, producer in tick:
            for broker, peer in zip(brokers, peers, strict=True):
                data = batch(values, **fields_of(*producer))
                broker.send(frame_of(data, version=version, acks=acks, correlation_id=number), peer)
        for broker in brokers:
            broker.usual.flush()
    assert peers[0].answers == peers[1].answers
    assert brokers[0].contents() == brokers[1].contents()
    assert brokers[0].taken == sum(map(len, ticks))


@pytest.mark.parametrize("size", [1, 30, 60, 200, 20_000])
def test_records_of_any_size_are_found(broker: Broker, size: int) -> None:
    peer = Peer()
    assert broker.produce(peer, bytes(size))
    broker.usual.flush()
    assert errors_of(peer) == [0]
    assert values_in(broker.contents())[-1] == (1, bytes(size))


def test_requests_of_many_connections_share_a_write(broker: Broker) -> None:
    peers = [Peer() for _ in range(50)]
    broker.produce(Peer(), b"second")  # from here on it is known when to close the segment
    broker.usual.flush()
    answered = broker.metrics.answered
    writes = broker.world.disk.calls["write"]
    for number, peer in enumerate(peers):
        assert broker.produce(peer, b"%d" % number)
    assert all(peer.answers == [] for peer in peers)
    broker.usual.flush()
    assert broker.world.disk.calls["write"] == writes + 1
    assert [errors_of(peer) for peer in peers] == [[0]] * 50
    assert values_in(broker.contents())[2:] == [(2 + n, b"%d" % n) for n in range(50)]
    assert broker.metrics.answered == broker.metrics.seconds.count == answered + 50


def test_large_batches_are_written_with_earlier_ones_once_they_are_many_bytes(
    broker: Broker,
) -> None:
    peer, large = Peer(), bytes(FLUSHED_BYTES // 3)
    broker.produce(Peer(), b"second")  # from here on it is known when to close the segment
    broker.usual.flush()
    assert broker.produce(peer, b"small")
    for _ in range(2):
        assert broker.produce(peer, large)
    writes = broker.world.disk.calls["write"]
    assert peer.answers == []
    assert broker.produce(peer, large)
    assert broker.world.disk.calls["write"] == writes + 1
    assert errors_of(peer) == [0] * 4
    expected = [b"second", b"small", large, large, large]
    assert values_in(broker.contents())[1:] == list(enumerate(expected, start=1))


def test_a_batch_of_many_bytes_is_written_at_once(broker: Broker) -> None:
    peer = Peer()
    for offset in (1, 2):
        assert broker.produce(peer, bytes(FLUSHED_BYTES))
        assert errors_of(peer) == [0] * offset


def test_delayed_operations_are_attempted_after_a_group_is_appended(broker: Broker) -> None:
    class Watch(DelayedOperation):
        has_heard = False

        def attempt(self) -> bool:
            self.has_heard = True
            return True

    world, watch = broker.world, Watch()
    world.replicas.delayed.add(watch, (world.lead(),), 1000, None)
    broker.produce(Peer(), b"x")
    broker.usual.flush()
    world.ticks.end()
    assert watch.has_heard


# What is not usual takes the general path


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(batch([b"x"]), acks=0),
        frame_of(batch([b"x"]), acks=7),
        frame_of(b""),
        frame_of(None),
        frame_of(batch([b"x"]), key=VIEWS),  # not hosted here
        frame_of(batch([b"x"]), key=OFFSETS),
        frame_of(batch([b"x"]), transactional_id="t"),
        frame_of(batch([b"x"]), ProduceTopic(name="views", partition_data=[])),
        frame_of(batch([b"x"]), client_id="c" * 1000),
    ],
)
def test_an_unusual_request_is_not_learned(frame: memoryview) -> None:
    broker = Broker()
    broker.world.lead(OFFSETS)
    broker.send(frame, Peer())
    assert broker.registered is None


@pytest.mark.parametrize("version", range(3))
def test_message_sets_are_not_learned(version: int) -> None:
    broker = Broker()
    header = RequestHeader(0, version, 1, "tests")
    request = decode_request(frame_of(batch([b"x"])))[1]
    assert (
        broker.usual.register(
            frame_of(batch([b"x"]), version=version), header, request, None, broker.scope
        )
        is None
    )


def world_of_two_replicas(**topic: Any) -> World:
    """Only this broker's replica is in sync."""
    world = World(topic=replace(TopicSettings(), **topic))
    world.lead(replicas=(BROKER, BROKER + 1))
    return world


@pytest.mark.parametrize(
    "topic",
    [
        {"message_timestamp_type": "LogAppendTime"},
        {"cleanup_policy": frozenset({"compact"})},
        {"compression_type": "gzip"},
        {"min_insync_replicas": 2},
    ],
)
def test_the_checks_that_a_topics_settings_require_are_never_skipped(topic: dict[str, Any]) -> None:
    unusual = Broker(world_of_two_replicas(**topic))
    unusual.produce(Peer(), b"x")
    assert unusual.registered is None
    changed = Broker(world_of_two_replicas())
    changed.produce(Peer(), b"x")
    changed.world.replicas.configure("clicks", replace(TopicSettings(), **topic))
    assert not changed.produce(Peer(), b"x")


def test_refused_records_get_the_same_errors(broker: Broker) -> None:
    peer, damaged = Peer(), batch([b"x"])
    damaged[-1] ^= 1
    assert not broker.send(frame_of(damaged), peer)
    assert not broker.send(frame_of(batch([bytes(2_000_000)])), peer)
    assert errors_of(peer) == [Error.CORRUPT_MESSAGE, Error.MESSAGE_TOO_LARGE]


@pytest.mark.parametrize(("version", "is_taken"), [(6, False), (7, True), (9, True)])
def test_zstd_is_accepted_from_the_version_that_allows_it(version: int, is_taken: bool) -> None:
    broker, peer = Broker(), Peer()
    broker.send(frame_of(batch([b"x"]), version=version), peer)
    packed = frame_of(batch([b"x"], codec=Codec.ZSTD), version=version)
    assert broker.send(packed, peer) is is_taken
    broker.usual.flush()
    assert errors_of(peer, version)[1] == (0 if is_taken else Error.UNSUPPORTED_COMPRESSION_TYPE)


def test_other_frames_are_declined(broker: Broker) -> None:
    peer, frame = Peer(), frame_of(batch([b"x"]))
    for end in range(len(frame)):
        assert not broker.take(frame[:end], peer)
    longer = memoryview(bytes(frame) + b"\0")
    assert not broker.take(longer, peer)
    other_key = memoryview(bytearray(frame))
    other_key[1] = 1
    assert not broker.take(other_key, peer)
    assert not broker.take(frame_of(batch([b"x"]), acks=-1), peer)
    assert peer.answers == []


def test_tags_behind_the_records_are_not_mistaken_for_a_part_of_them(broker: Broker) -> None:
    frame = bytes(frame_of(batch([b"x"])))
    tagged = memoryview(bytearray(frame[:-1] + b"\x01\x07\x03\0\0\0"))
    assert not broker.send(tagged, Peer())
    assert broker.registered is None


@pytest.mark.parametrize("version", [8, 9])
def test_a_batch_behind_the_records_is_not_mistaken_for_them(version: int) -> None:
    """The decoder ignores bytes and tags behind a request; a batch there used to be appended."""
    brokers = Broker(), Broker(has_fast_path=False)
    peers = Peer(), Peer()
    for value in (b"one", b"two", b"six"):
        first, behind = bytes(frame_of(batch([b"own"]), version=version)), batch([value])
        if version < 9:
            frame = first + len(behind).to_bytes(4, "big") + behind
        else:
            tag = bytes((len(behind) + 1, *behind, 0))
            frame = first[:-3] + bytes((1, 0, len(tag), *tag, 0, 0))
        for broker, peer in zip(brokers, peers, strict=True):
            broker.send(memoryview(bytearray(frame)), peer)
            broker.usual.flush()
    assert peers[0].answers == peers[1].answers
    assert brokers[0].contents() == brokers[1].contents()
    assert errors_of(peers[0], version) == [0, 0, 0]
    assert brokers[0].taken == 0


def test_a_deleted_or_recreated_partition_is_looked_up_again(broker: Broker) -> None:
    broker.world.stop()
    peer = Peer()
    assert not broker.produce(peer, b"x")
    broker.world.lead()
    broker.produce(peer, b"again")
    broker.usual.flush()
    assert errors_of(peer) == [Error.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert values_in(broker.contents()) == [(0, b"again")]


def test_a_log_whose_start_has_moved_is_learned_again(broker: Broker) -> None:
    general_path = Broker(has_fast_path=False)
    general_path.produce(Peer(), b"first")
    peers = Peer(), Peer()
    for each, peer in zip((broker, general_path), peers, strict=True):
        each.world.lead().log.delete_records(1)
        taken = [each.produce(peer, b"x") for _ in range(2)]
        each.usual.flush()
        assert taken == [False, each is broker]
    assert peers[0].answers == peers[1].answers


def test_on_a_slow_disk_requests_are_answered_when_the_thread_has_written(broker: Broker) -> None:
    world, peer = broker.world, Peer()
    world.disk.fail(when=lambda call: bool(call.name == "write" and world.clock.wait_ms(60)))
    for _ in range(2):
        assert broker.produce(peer, b"x")
        broker.usual.flush()
    assert broker.produce(peer, b"y")
    broker.usual.flush()
    assert (peer.answers[2:], peer.pending_produces) == ([[]], 1)
    world.settle(500)
    assert errors_of(peer) == [0, 0, 0]
    assert peer.pending_produces == 0


def test_a_wrong_sequence_is_refused_without_a_second_look_at_the_request(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer()
    monkeypatch.delattr(ProduceHandler, "handle")
    for sequence in (0, 7, 1):
        assert broker.produce(peer, b"x", **fields_of(5, sequence))
    broker.usual.flush()
    assert errors_of(peer) == [0, Error.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]
    assert broker.world.metrics.failed_produces == 1


# Waiting until records are committed


def careful_broker(acks: int) -> Broker:
    """A broker whose topic exposes flushed records only, and that knows such requests."""
    broker = Broker(World(topic=TopicSettings(flush_before_expose=True)))
    for _ in range(2):  # after the second append the log knows for how long it need not roll
        broker.send(frame_of(batch([b"first"]), acks=acks), Peer())
        broker.usual.flush()
        broker.world.settle(500)
    assert broker.registered is not None
    return broker


def test_all_requests_of_an_append_wait_for_its_commit_in_one_delayed_operation() -> None:
    broker, peers = careful_broker(-1), [Peer(), Peer()]
    for peer in (*peers, *peers):
        assert broker.send(frame_of(batch([b"x"]), acks=-1), peer)
    broker.usual.flush()
    assert [peer.answers for peer in peers] == [[[], []]] * 2
    assert [peer.pending_produces for peer in peers] == [2, 2]
    assert len(broker.world.replicas.delayed) == 1
    broker.world.settle(500)
    assert [errors_of(peer) for peer in peers] == [[0, 0]] * 2
    assert [peer.pending_produces for peer in peers] == [0, 0]
    assert len(broker.world.replicas.delayed) == 0


def test_requests_that_wait_for_a_commit_fail_once_the_broker_no_longer_leads() -> None:
    broker, peer = careful_broker(-1), Peer()
    broker.send(frame_of(batch([b"x"]), acks=-1), peer)
    broker.usual.flush()
    broker.world.lead().resign()
    broker.world.ticks.end()
    assert errors_of(peer) == [Error.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize(("acks", "error"), [(1, Error.NONE), (-1, Error.NOT_LEADER_OR_FOLLOWER)])
def test_acks_all_gets_no_yes_if_leadership_changes_during_the_threads_write(
    acks: int, error: Error
) -> None:
    broker, peer = Broker(), Peer()
    broker.send(frame_of(batch([b"first"]), acks=acks), Peer())
    partition = broker.world.replicas.partitions[CLICKS]
    partition._context.writers.thread_until_ns = broker.world.clock.monotonic_ns() + 10**10
    for _ in range(2):
        assert broker.send(frame_of(batch([b"a"]), acks=acks), peer)
    broker.usual.flush()
    state = partition.state._replace(leader=2, leader_epoch=1)
    partition.lead_or_follow(state, partition.replicas)
    broker.world.settle()
    assert errors_of(peer) == [error] * 2


def test_with_acks_one_nobody_waits_for_the_flush() -> None:
    broker, peer = careful_broker(1), Peer()
    assert broker.send(frame_of(batch([b"x"])), peer)
    broker.usual.flush()
    assert errors_of(peer) == [0]
    assert len(broker.world.replicas.delayed) == 0


# Conditions that change before the tick ends


def test_a_partition_lost_within_the_turn_is_not_written_to(broker: Broker) -> None:
    peer, before = Peer(), broker.contents()
    broker.produce(peer, b"x")
    broker.world.lead().resign()
    broker.usual.flush()
    assert errors_of(peer) == [Error.NOT_LEADER_OR_FOLLOWER]
    assert broker.contents() == before


def test_once_the_disk_turns_slow_within_a_turn_the_thread_writes_all_of_it(
    broker: Broker,
) -> None:
    world, peer = broker.world, Peer()
    for value in (b"a", b"b"):
        broker.produce(peer, value)
    world.replicas._context.writers.thread_until_ns = world.clock.monotonic_ns() + 1
    broker.usual.flush()
    assert peer.answers == [[], []]
    world.settle()
    assert errors_of(peer) == [0, 0]
    assert values_in(broker.contents()) == [(0, b"first"), (1, b"a"), (2, b"b")]


def test_on_a_full_disk_each_produce_fails_and_nothing_of_the_group_stays(broker: Broker) -> None:
    peer, before = Peer(), broker.contents()
    broker.world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    for value in (b"a", b"b", b"c"):
        assert broker.produce(peer, value)
    broker.usual.flush()
    assert errors_of(peer) == [Error.KAFKA_STORAGE_ERROR] * 3
    assert broker.contents() == before
    broker.world.disk.heal()
    broker.produce(peer, b"d")
    broker.usual.flush()
    assert values_in(broker.contents()) == [(0, b"first"), (1, b"d")]


def test_after_a_moment_of_a_full_disk_only_the_first_batch_is_refused(broker: Broker) -> None:
    peer = Peer()
    broker.world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    for value in (b"a", b"b"):
        broker.produce(peer, value)
    broker.usual.flush()
    assert errors_of(peer) == [Error.KAFKA_STORAGE_ERROR, 0]
    assert values_in(broker.contents()) == [(0, b"first"), (1, b"b")]


def test_a_disk_failure_leaves_requests_unanswered(broker: Broker) -> None:
    peer = Peer()
    broker.world.disk.fail(when=lambda call: call.name == "write")
    broker.produce(peer, b"x")
    with pytest.raises(DiskFailed):
        broker.usual.flush()
    assert peer.answers == []


def test_after_a_disk_failure_no_answer_names_records_that_are_not_in_the_log(
    broker: Broker,
) -> None:
    """What comes in the rest of the tick was answered with an offset of the tick before."""
    views = broker.world.lead(VIEWS)
    broker.send(frame_of(batch([b"first"]), key=VIEWS, client_id="other"), Peer())
    ends = {VIEWS: broker.registered}
    broker.produce(Peer(), b"x")
    ends[CLICKS] = broker.registered

    def send(key: TopicPartition) -> None:
        broker.registered = ends[key]
        frame = frame_of(batch([b"x"]), key=key, client_id="other" if key == VIEWS else "tests")
        assert broker.send(frame, peer)

    peer = Peer()
    for key in (VIEWS, VIEWS, CLICKS):
        send(key)
    broker.usual.flush()
    broker.world.disk.fail(when=lambda call: call.name == "write", forever=False)
    send(CLICKS)
    send(VIEWS)
    with pytest.raises(DiskFailed):
        broker.usual.flush()
    assert len(peer.answers) == 3
    send(VIEWS)
    broker.usual.flush()
    assert len(peer.answers) == views.log.end_offset == 4


def test_a_duplicate_within_a_group_has_the_offset_of_the_first(broker: Broker) -> None:
    peer = Peer()
    for sequence in (0, 1, 1, 2):
        assert broker.produce(peer, b"%d" % sequence, **fields_of(5, sequence))
    broker.usual.flush()
    offsets = []
    for answer in peer.answers:
        _, response = decode_response(API, 9, b"".join(answer)[4:])
        offsets.append(response.responses[0].partition_responses[0].base_offset)
    assert offsets == [1, 2, 2, 3]
    assert values_in(broker.contents())[1:] == [(1, b"0"), (2, b"1"), (3, b"2")]
