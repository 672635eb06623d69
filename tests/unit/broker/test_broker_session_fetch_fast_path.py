"""The fast path of fetches in a session, compared with a broker that lacks it.

Whatever a client asks and whatever happens to its partition, both answer the same bytes at the same
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.fast_path import Registered
from kdist.broker.fast_path import fetch as fetch_path
from kdist.broker.fast_path.fetch import FetchFastPath
from kdist.errors import Error
from kdist.metrics.broker import RequestMetrics
from kdist.model import TopicPartition
from kdist.protocol.fetch import API, FetchPartition, FetchRequest, ForgottenTopic
from kdist.protocol.frame import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
)
from tests.unit.broker.broker_fetches import SCOPE, Broker, Connection, GeneralCall, topic
from tests.unit.replication.replication_world import CLICKS, VIEWS, append

VERSIONS = range(7, 18)


def _name(version: int, key: TopicPartition) -> dict[str, Any]:
    named = topic(version, key.topic)
    return {"topic": named.topic, "topic_id": named.topic_id}


class Consumer(Connection):
    """A client of a broker of its own, and its connection: `answers` is what came."""

    def __init__(self, version: int, *, has_fast_path: bool, **limits: int) -> None:
        super().__init__()
        self.broker = Broker()
        self.broker.lead(CLICKS)
        self.broker.lead(VIEWS)
        self.version = version
        self.limits = {"max_wait_ms": 500, "min_bytes": 1, "isolation_level": 0, **limits}
        self.path = (
            FetchFastPath(self.broker.handler, RequestMetrics(), int, self.broker.crashes)
            if has_fast_path
            else None
        )
        self.known: Registered | None = None
        self.taken = self.asked = 0
        self.session_id = 0
        self.epoch = 0

    def fetch(
        self,
        offsets: dict[TopicPartition, int],
        forgotten: Sequence[TopicPartition] = (),
        **fields: int,
    ) -> None:
        """The session's next request, which names these partitions."""
        parts = {name: fields.pop(name) for name in list(fields) if hasattr(FetchPartition, name)}
        epoch = fields.pop("epoch", self.epoch)
        request = FetchRequest(
            **{**self.limits, **fields},
            session_id=self.session_id,
            session_epoch=epoch,
            topics=[
                topic(
                    self.version,
                    key.topic,
                    FetchPartition(
                        **{
                            "partition": key.partition,
                            "fetch_offset": offset,
                            "partition_max_bytes": 1 << 20,
                            **parts,
                        }
                    ),
                )
                for key, offset in offsets.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(**_name(self.version, key), partitions=[key.partition])
                for key in forgotten
            ],
        )
        self.ask(request)
        self.epoch += 1

    def ask(self, request: FetchRequest) -> None:
        """As `Dispatch` does."""
        self.asked += 1
        header = RequestHeader(1, self.version, self.asked, "a client")
        frame = memoryview(bytes(encode_request(header, request)))[4:]
        connection: Any = self
        if self.known is not None and self.known[0].try_handle(frame, self.known, connection):
            self.taken += 1
            return
        _, decoded = decode_request(frame)
        call = GeneralCall(self.version, self, header.correlation_id)
        self.broker.handler.handle(decoded, call)
        if self.path is not None:
            _, request = decode_request(frame)
            self.known = self.path.register(frame, header, request, call.response, SCOPE)

    def begin(self, *keys: TopicPartition) -> None:
        """Get a session."""
        self.fetch(dict.fromkeys(keys or (CLICKS,), 0), max_wait_ms=0)
        self.session_id = self.responses()[-1].session_id
        assert self.session_id

    def responses(self) -> list[Any]:
        return [decode_response(API, self.version, answer[4:])[1] for answer in self.answers]

    def skip(self, epochs: int) -> None:
        """Send a wrong session epoch."""
        self.epoch += epochs

    def append(self, size: int = 500) -> None:
        """Append a record as another client, if the partition accepts it."""
        partition = self.broker.replicas.get(CLICKS)
        if partition.is_leader:
            append(self.broker, partition, bytes(size))

    def results(self) -> list[tuple[int, int]]:
        """Of each answer the number of partitions, and how many bytes of records are in them."""
        return [
            (
                sum(len(topic.partitions) for topic in response.responses),
                sum(len(p.records) for topic in response.responses for p in topic.partitions),
            )
            for response in self.responses()
        ]


def correlation_id(answer: bytes) -> bytes:
    return answer[4:8]


class Pair:
    """The same consumer on the fast path and without it."""

    def __init__(self, version: int = 12, **limits: int) -> None:
        self.fast = Consumer(version, has_fast_path=True, **limits)
        self.general = Consumer(version, has_fast_path=False, **limits)
        self.both = self.fast, self.general

    def __getattr__(self, name: str) -> Any:
        def both(*arguments: Any, **keywords: Any) -> None:
            for each in self.both:
                getattr(each, name)(*arguments, **keywords)
            self.check()

        return both

    def settle(self, ms: float = 0) -> None:
        for each in self.both:
            each.broker.settle(ms)
        self.check()

    def check(self) -> None:
        """A connection sends answers in the order of the requests, whichever was ready first."""
        fast, general = (sorted(e.answers, key=correlation_id) for e in (self.fast, self.general))
        assert fast == general

    def end(self) -> None:
        """Nothing is left behind."""
        self.settle(1000)
        for each in self.both:
            assert each.broker.pins == 0
            assert len(each.broker.replicas.delayed) == 0


def of_all(pair: Pair, change: Any) -> None:
    for each in pair.both:
        change(each.broker)
    pair.check()


# --- the same bytes -------------------------------------------------------------------------------

steps = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([10, 500, 20_000])),
    st.tuples(st.just("fetch"), st.none()),
    st.tuples(st.just("fetch from"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.sampled_from([1, 100, 600])),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("expose early"), st.booleans()),
    st.tuples(st.just("start"), st.integers(0, 4)),
    st.tuples(st.just("more"), st.sampled_from([CLICKS, VIEWS])),
    st.tuples(st.just("forget"), st.sampled_from([CLICKS, VIEWS])),
    st.tuples(st.just("again"), st.integers(-1, 1)),
    st.tuples(st.just("bytes"), st.sampled_from([0, 100, 700, 1 << 20])),
    st.tuples(st.just("epoch"), st.integers(0, 1)),
    st.tuples(st.just("resign"), st.none()),
)


def play(pair: Pair, name: str, value: Any) -> None:
    """One step, of both."""
    asked: dict[str, Any] = {
        "fetch": lambda: pair.fetch({}),
        "fetch from": lambda: pair.fetch({CLICKS: value}),
        "more": lambda: pair.fetch({value: 0}),
        "forget": lambda: pair.fetch({}, [value]),
        "bytes": lambda: pair.fetch({CLICKS: 0}, partition_max_bytes=value),
        "epoch": lambda: pair.fetch({CLICKS: 0}, current_leader_epoch=value),
        "again": lambda: pair.skip(value),
        "append": lambda: pair.append(value),
        "pass": lambda: pair.settle(value),
    }
    asked.get(name, lambda: of_all(pair, lambda broker: happen(broker, name, value)))()
    pair.settle(0)


def happen(broker: Broker, name: str, value: Any) -> None:
    """What clients do not ask for."""
    log = broker.directory.logs[CLICKS]
    if name == "flush":
        broker.directory.flusher.request(log)
    elif name == "expose early":
        settings = replace(log.settings, flush_before_expose=not value)
        broker.replicas.configure(CLICKS.topic, settings)
    elif name == "start":
        mark = broker.replicas.get(CLICKS).high_watermark
        broker.directory.trimmer.delete_records(log, min(value, mark), lambda _: None)
    elif name == "resign":
        broker.replicas.get(CLICKS).resign()


@pytest.mark.parametrize("version", VERSIONS)
@given(
    script=st.lists(steps, min_size=3, max_size=30),
    min_bytes=st.sampled_from([0, 1, 700]),
    max_wait_ms=st.sampled_from([0, 300]),
    isolation_level=st.sampled_from([0, 1]),
)
def test_every_answer_equals_the_general_paths_and_comes_at_the_same_time(
    version: int, script: list[tuple[str, Any]], **limits: int
) -> None:
    pair = Pair(version, **limits)
    pair.begin()
    for name, value in script:
        play(pair, name, value)
    pair.end()


# --- what takes the fast path --------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_consumer_that_keeps_up_takes_the_fast_path(version: int) -> None:
    pair = Pair(version)
    pair.begin()
    pair.fetch({})
    for offset in range(1, 11):
        pair.append()
        pair.settle()
        pair.fetch({CLICKS: offset})
    pair.settle(600)
    pair.fetch({})
    pair.fetch({})
    pair.settle(600)
    assert (pair.fast.asked, pair.fast.taken) == (14, 12)
    results = pair.fast.results()
    assert [count for count, _ in results] == [1] + [1] * 10 + [0] * 3
    assert all(size > 0 for _, size in results[1:11])
    pair.end()


def test_a_first_request_that_names_the_partition_teaches_both_shapes() -> None:
    pair = Pair()
    pair.append()
    pair.begin()
    pair.fetch({CLICKS: 1})
    pair.settle(600)
    pair.fetch({})
    pair.append()
    pair.settle()
    pair.fetch({CLICKS: 2})
    assert pair.fast.taken == 2
    pair.end()


def test_a_session_of_two_partitions_is_left_to_the_general_path() -> None:
    pair = Pair()
    pair.begin(CLICKS, VIEWS)
    for _ in range(3):
        pair.fetch({})
        pair.settle(600)
    assert pair.fast.taken == 0


def test_a_partition_added_to_the_session_ends_the_fast_path() -> None:
    pair = Pair()
    pair.begin()
    pair.fetch({})
    pair.fetch({})
    assert pair.fast.taken == 1
    pair.fetch({VIEWS: 0})
    pair.fetch({})
    assert pair.fast.taken == 1
    pair.fetch({}, [CLICKS])
    pair.fetch({})
    pair.end()


def test_a_wrong_session_epoch_is_refused_by_the_general_path() -> None:
    pair = Pair()
    pair.begin()
    pair.fetch({})
    pair.settle(600)
    pair.skip(1)
    pair.fetch({})
    assert pair.fast.responses()[-1].error_code == Error.INVALID_FETCH_SESSION_EPOCH
    for each in pair.both:
        each.session_id += 1
    pair.fetch({})
    assert pair.fast.responses()[-1].error_code == Error.FETCH_SESSION_ID_NOT_FOUND
    assert pair.fast.taken == 0


def test_a_request_overtaken_by_a_later_one_gets_an_error() -> None:
    pair = Pair()
    pair.begin()
    for _ in range(3):
        pair.fetch({})
    pair.append()
    pair.settle()
    errors = [response.error_code for response in pair.fast.responses()]
    assert sorted(errors) == [0, 0] + [Error.INVALID_FETCH_SESSION_EPOCH] * 2
    pair.end()


@pytest.mark.parametrize("forgotten", [[], [CLICKS]])
def test_a_request_ends_with_the_tick_in_which_a_later_one_overtakes_it(
    forgotten: list[TopicPartition],
) -> None:
    pair = Pair(min_bytes=700, max_wait_ms=300)
    pair.begin()
    for number in range(3):
        pair.fetch({})
        pair.settle(0)
        assert [len(each.answers) for each in pair.both] == [1 + number] * 2
    pair.fetch({}, forgotten, max_wait_ms=0)
    pair.settle(0)
    errors = [Error.of(each.error_code) for each in pair.fast.responses()]
    assert sorted(errors) == [Error.NONE] * 2 + [Error.INVALID_FETCH_SESSION_EPOCH] * 3
    pair.end()


def test_a_partition_lost_while_a_fetch_waits_gets_an_error() -> None:
    pair = Pair()
    pair.begin()
    pair.fetch({})
    pair.settle(600)
    pair.fetch({})
    assert pair.fast.taken == 1
    of_all(pair, lambda broker: broker.replicas.get(CLICKS).resign())
    pair.settle()
    (topic,) = pair.fast.responses()[-1].responses
    assert topic.partitions[0].error_code == Error.NOT_LEADER_OR_FOLLOWER
    pair.end()


def test_a_truncated_or_longer_frame_is_declined() -> None:
    consumer = Consumer(12, has_fast_path=True)
    consumer.begin()
    consumer.fetch({})
    consumer.broker.settle(600)
    header = RequestHeader(1, 12, 9, "a client")
    request = FetchRequest(
        **consumer.limits, session_id=consumer.session_id, session_epoch=2, topics=[]
    )
    frame = memoryview(bytes(encode_request(header, request)))[4:]
    connection: Any = consumer
    assert consumer.path is not None
    assert consumer.known is not None
    for other in [
        frame[:-1],
        frame[:-4],
        frame[: consumer.known[1]],
        memoryview(bytes(frame) + b"\0"),
    ]:
        assert not consumer.path.try_handle(other, consumer.known, connection)
    assert consumer.path.try_handle(frame, consumer.known, connection)


def test_closed_sessions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_path, "_TEMPLATES_MAX", 5)
    consumer = Consumer(12, has_fast_path=True)
    assert consumer.path is not None
    for number in range(20):
        consumer.begin()
        consumer.fetch({}, max_wait_ms=0)
        consumer.fetch({}, max_wait_ms=0)
        assert consumer.taken == number + 1
        assert len(consumer.path._templates[SCOPE]) <= 5
        consumer.fetch({}, max_wait_ms=0, epoch=-1)
        consumer.session_id = consumer.epoch = 0
