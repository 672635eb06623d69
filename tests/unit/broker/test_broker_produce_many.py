"""Produces to many partitions: usual batches get the same result as on the general path."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.produce import ProducePartition, ProduceTopic
from kdist.replication.partition import Partition
from tests.unit.broker.broker_produces import Broker, Peer, errors_of, fields_of, frame_of
from tests.unit.replication.replication_world import CLICKS, batch

KEYS = [TopicPartition("clicks", number) for number in range(3)]

PRODUCERS = st.sampled_from([(-1, -1), (5, 0), (5, 1), (5, 2), (5, 7), (6, 0)])
PARTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # the last is hosted nowhere
        st.lists(st.binary(max_size=50), min_size=1, max_size=3),
        PRODUCERS,
        st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


def topic_of(number: int, records: bytearray) -> ProduceTopic:
    data = ProducePartition(index=number, records=records)
    return ProduceTopic(name="clicks", partition_data=[data])


def led() -> Broker:
    broker = Broker(has_fast_path=False)
    for key in KEYS:
        broker.world.lead(key)
    return broker


def log_of(broker: Broker, key: TopicPartition) -> bytes:
    log = broker.world.replicas.partitions[key].log
    return log.active.file.read(0, log.size) if log.size else b""


@settings(max_examples=60)
@given(st.integers(3, 9), st.sampled_from([0, 1, -1]), st.lists(PARTS, max_size=4))
def test_answers_and_logs_equal_those_of_the_general_path(
    version: int, acks: int, requests: list[list[tuple[int, list[bytes], tuple[int, int], bool]]]
) -> None:
    found = []
    for is_long in (False, True):
        broker, peer = led(), Peer()
        for parts in requests:
            topics = []
            for number, values, producer, is_damaged in parts:
                data = batch(values, **fields_of(*producer))
                data[-1] ^= is_damaged
                topics.append(topic_of(number, data))
            frame = frame_of(batch([b"first"]), *topics, version=version, acks=acks)
            with pytest.MonkeyPatch.context() as patched:
                if is_long:
                    patched.setattr(Partition, "append_group", lambda *_: ())
                broker.send(frame, peer)
        logs = [log_of(broker, key) for key in KEYS]
        found.append((peer.answers, peer.is_closed, logs, broker.world.metrics.failed_produces))
    assert found[0] == found[1]


def test_a_usual_batch_does_not_take_the_general_path(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, peer = led(), Peer()
    monkeypatch.delattr(Partition, "append")
    broker.send(frame_of(batch([b"a"]), topic_of(1, batch([b"b"], **fields_of(5, 0)))), peer)
    assert errors_of(peer) == [Error.NONE]
    assert all(log_of(broker, key) for key in KEYS[:2])
    assert broker.world.replicas.partitions[CLICKS].log.end_offset == 1
