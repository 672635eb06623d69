"""From what is fetched to a stream: settings, partitions' owners, the feed, what is processed."""

from __future__ import annotations

import asyncio
import doctest
import functools
import json
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.classic.connector import assignment, connector, subscription
from kdist.classic.connector.assignment import assign, ordered
from kdist.classic.connector.feed import Feed
from kdist.classic.connector.ownership import Ownership
from kdist.classic.connector.settings import read_settings
from kdist.classic.connector.stream import Chunk, ConsumerTimeout, Stream, Streams
from kdist.classic.connector.subscription import (
    Blacklist,
    Filtered,
    Topics,
    Whitelist,
    read_subscription,
)
from kdist.client.cluster import NoBroker
from kdist.client.consumer.batch import Batch, NotDecoded
from kdist.errors import ApiError, CorruptRecords, Error, UserError
from kdist.model import TopicPartition
from kdist.records.batch import iter_headers
from kdist.records.build import build_batch
from kdist.zk.values import ConsumerRegistration
from tests.refusals import refused

PARTITION = TopicPartition("clicks", 3)


def stream_of(
    timeout_s: float | None = 0,
    chunks_max: int = 2,
    on_hungry: Callable[[Stream], None] = lambda _: None,
) -> Stream:
    return Stream("c-0", chunks_max, timeout_s, on_hungry)


def open_claim(start: int = 0) -> Ownership:
    ownership = Ownership(PARTITION, "c-0")
    ownership.start = start
    return ownership


def batch_of(base_offset: int, *values: bytes, decoder: Any = None) -> Batch:
    data = build_batch(values, base_offset=base_offset, timestamp_ms=0)
    ((at, header),) = iter_headers(data)
    return Batch(PARTITION, header, data, at, base_offset, (None, decoder))


def chunk(ownership: Ownership, base_offset: int, *values: bytes) -> Chunk:
    return Chunk(ownership, [batch_of(base_offset, *values)])


FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
SETTINGS = read_settings(
    {
        "group.id": "g",
        "zookeeper.connect": "memory",
        "queued.max.message.chunks": 1,
        "consumer.timeout.ms": 0,
    }
)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class ScriptedConsumer:
    """Stands in for a consumer: it returns what the test put there."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[list[Batch] | Exception] = asyncio.Queue()
        self.assigned: list[TopicPartition] = []
        self.sought: list[tuple[TopicPartition, int]] = []
        self.paused: set[TopicPartition] = set()
        self.ends: list[dict[TopicPartition, int] | Exception] = []

    async def poll_batches(self) -> list[Batch]:
        given = await self.given.get()
        if isinstance(given, Exception):
            raise given
        return given

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return {each: end[each] for each in partitions}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.assigned = list(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append((partition, offset))

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused.difference_update(partitions)


class Fed:
    """A running feed for one stream."""

    def __init__(self) -> None:
        self.consumer = ScriptedConsumer()
        self.hungry: list[Stream] = []
        self.streams = Streams("c", Topics({"clicks": 1}), SETTINGS, self.hungry.append)
        (self.stream,) = self.streams.by_topic("clicks")
        self.feed = Feed(self.consumer, [], self.streams, reset_to_start=False)  # type: ignore[arg-type]
        self.running = asyncio.get_running_loop().create_task(self.feed.run())

    def own(self, partition: TopicPartition, start: int) -> Ownership:
        ownership = Ownership(partition, "c-0")
        ownership.start = start
        self.feed.add(ownership)
        return ownership

    async def give(self, *given: Batch) -> None:
        self.consumer.given.put_nowait(list(given))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def feed_batch_of(partition: TopicPartition, offset: int, *values: bytes) -> Batch:
    data = build_batch(values, base_offset=offset, timestamp_ms=0)
    ((at, header),) = iter_headers(data)
    return Batch(partition, header, data, at, offset)


LEAST = {"group.id": "g", "zookeeper.connect": "localhost"}

NAMES = st.text("abz-09", min_size=1, max_size=4)
GROUPS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.sets(NAMES, min_size=1, max_size=5), min_size=1
)
COUNTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 9))


def test_a_message_has_all_its_fields() -> None:
    stream = stream_of()
    stream.put(chunk(open_claim(), 7, b"v"))
    message = next(stream)
    assert (message.topic, message.partition, message.offset) == ("clicks", 3, 7)
    assert (message.key, message.value, message.payload()) == (None, b"v", b"v")


def test_a_message_counts_as_processed_when_the_next_is_asked_for() -> None:
    stream, ownership = stream_of(), open_claim(5)
    stream.put(chunk(ownership, 5, b"a", b"b"))
    assert ownership.position == 5
    next(stream)
    assert ownership.position == 5
    next(stream)
    assert ownership.position == 6
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert ownership.position == 7


def test_a_loop_left_in_the_middle_resumes_there() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(chunk(ownership, 0, b"a", b"b", b"c"))
    for message in stream:
        assert message.value == b"a"
        break
    assert ownership.position == 0
    assert [next(stream).value, next(stream).value] == [b"b", b"c"]
    assert ownership.position == 2


def test_next_and_loops_in_turn_return_every_message_once() -> None:
    stream, ownership = stream_of(), open_claim()
    batches = [batch_of(at, b"%d" % at, b"%d" % (at + 1), b"%d" % (at + 2)) for at in (0, 3, 6)]
    stream.put(Chunk(ownership, batches))
    given = [next(stream).offset]
    for message in stream:
        given.append(message.offset)
        if message.offset == 3:
            break
    given.append(next(stream).offset)
    assert given == [0, 1, 2, 3, 4]
    assert ownership.position == 4
    assert [message.offset for _, message in zip(range(4), stream, strict=False)] == [5, 6, 7, 8]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_message_whose_decoding_was_interrupted_is_returned_next(
    error: type[BaseException],
) -> None:
    errors = [error()]

    def decode(value: bytes) -> bytes:
        if value == b"d" and errors:
            raise errors.pop()
        return value

    stream, ownership = stream_of(), open_claim()
    batches = [batch_of(0, b"a", b"b", decoder=decode), batch_of(2, b"c", b"d", decoder=decode)]
    stream.put(Chunk(ownership, batches))
    assert [next(stream).value, next(stream).value] == [b"a", b"b"]
    with pytest.raises(error):
        next(stream)
    assert ownership.position == 2
    assert [next(stream).value, next(stream).value] == [b"c", b"d"]


def test_a_damaged_batch_is_not_skipped() -> None:
    stream, ownership = stream_of(), open_claim()
    damaged = batch_of(1, b"b")
    damaged.body = b"\xff"
    stream.put(Chunk(ownership, [batch_of(0, b"a"), damaged, batch_of(2, b"c")]))
    assert next(stream).value == b"a"
    for _ in range(2):
        with pytest.raises(CorruptRecords):
            next(stream)
        assert ownership.position == 1


def test_settle_counts_only_messages_returned_to_its_own_thread() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(chunk(ownership, 0, b"a", b"b"))
    next(stream)
    other = threading.Thread(target=stream.settle)
    other.start()
    other.join()
    assert ownership.position == 0
    stream.settle()
    assert ownership.position == 1
    next(stream)
    assert ownership.position == 1


def test_no_message_of_a_closed_claim_is_returned() -> None:
    stream, gone, kept = stream_of(), open_claim(), open_claim()
    stream.put(chunk(gone, 0, b"a", b"b"))
    stream.put(chunk(gone, 2, b"c"))
    stream.put(chunk(kept, 0, b"z"))
    assert next(stream).value == b"a"
    gone.close()
    stream.look()
    assert next(stream).value == b"z"
    assert gone.position == 0, "what was worked on is given again, by another"


def test_a_held_claim_resumes_where_it_was() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(chunk(ownership, 0, b"a", b"b"))
    next(stream)
    ownership.hold(is_held=True)
    with pytest.raises(ConsumerTimeout):
        next(stream)
    ownership.hold(is_held=False)
    assert next(stream).value == b"b"


def test_a_full_stream_reports_when_it_has_room() -> None:
    hungry: list[Stream] = []
    stream, ownership = stream_of(on_hungry=hungry.append), open_claim()
    stream.put(chunk(ownership, 0, b"a"))
    assert not stream.is_full
    stream.put(chunk(ownership, 1, b"b"))
    assert stream.is_full
    next(stream)
    assert hungry == [stream]
    next(stream)
    assert hungry == [stream]


def test_room_left_by_a_lost_partition_is_reported_too() -> None:
    hungry: list[Stream] = []
    stream, ownership = stream_of(on_hungry=hungry.append), open_claim()
    stream.put(chunk(ownership, 0, b"a"))
    stream.put(chunk(ownership, 1, b"b"))
    ownership.close()
    stream.look()
    assert hungry == [stream]


def test_a_waiting_reader_gets_new_messages_and_the_end() -> None:
    stream = stream_of(timeout_s=None)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.extend(each.value for each in stream))
    reader.start()
    stream.put(chunk(open_claim(), 0, b"a"))
    stream.put(chunk(open_claim(), 0, b"b"))
    while len(found) < 2:
        assert reader.is_alive()
    stream.stop()
    reader.join(10)
    assert found == [b"a", b"b"]
    assert list(stream) == []


def test_an_error_is_raised_once_to_the_reader() -> None:
    stream = stream_of()
    stream.fail(ValueError("it went wrong"))
    stream.fail(ValueError("and so did this, for the same reason"))
    with pytest.raises(ValueError, match="it went wrong"):
        next(stream)
    with pytest.raises(ConsumerTimeout):
        next(stream)


def test_a_message_that_cannot_be_decoded_is_raised_once_and_then_skipped() -> None:
    stream, ownership = stream_of(), open_claim()
    stream.put(Chunk(ownership, [batch_of(0, b"1", b"{", b"3", decoder=json.loads)]))
    assert next(stream).payload() == 1
    with pytest.raises(NotDecoded) as refused:
        next(stream)
    assert refused.value.offset == 1
    assert next(stream).payload() == 3
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert ownership.position == 3


@on_a_loop
async def test_a_full_stream_is_fed_again_when_it_has_room() -> None:
    fed = Fed()
    fed.own(FIRST, 3)
    await fed.give(feed_batch_of(FIRST, 3, b"a"), feed_batch_of(FIRST, 4, b"b"))
    assert fed.consumer.paused == {FIRST}
    fed.own(SECOND, 0)
    assert fed.consumer.paused == {FIRST, SECOND}
    assert fed.consumer.sought == [(FIRST, 3), (SECOND, 0)]
    assert next(fed.stream).offset == 3
    assert fed.hungry == [fed.stream]
    fed.feed.resume(fed.stream)
    assert fed.consumer.paused == set()
    assert next(fed.stream).offset == 4


@on_a_loop
async def test_batches_of_a_released_partition_are_dropped() -> None:
    fed = Fed()
    ownership = fed.own(FIRST, 0)
    fed.own(SECOND, 0)
    fed.feed.remove([ownership])
    assert fed.consumer.assigned == [SECOND]
    await fed.give(feed_batch_of(FIRST, 0, b"a"), feed_batch_of(SECOND, 0, b"b"))
    assert next(fed.stream).value == b"b"
    with pytest.raises(ConsumerTimeout):
        next(fed.stream)


@on_a_loop
async def test_only_permanent_errors_are_raised_in_the_stream() -> None:
    fed = Fed()
    fed.own(FIRST, 0)
    for error in (NoBroker("nobody"), ApiError(Error.NOT_LEADER_OR_FOLLOWER)):
        fed.feed._tell(error)
    with pytest.raises(ConsumerTimeout):
        next(fed.stream)
    for fault in (CorruptRecords("bad"), ApiError(Error.TOPIC_AUTHORIZATION_FAILED)):
        fed.feed._tell(fault)
        with pytest.raises(type(fault), match=fault.error.name):
            next(fed.stream)


@on_a_loop
async def test_feeding_resumes_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdist.classic.connector.feed._TRY_AGAIN_S", 0.0)
    fed = Fed()
    fed.own(FIRST, 0)
    fed.consumer.given.put_nowait(CorruptRecords("bad"))
    await fed.give(feed_batch_of(FIRST, 0, b"a"))
    with pytest.raises(CorruptRecords):
        next(fed.stream)
    await asyncio.sleep(0.01)
    assert next(fed.stream).value == b"a"


@on_a_loop
async def test_the_starting_offset_is_asked_for_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdist.classic.connector.feed._TRY_AGAIN_S", 0.0)
    fed = Fed()
    fed.consumer.ends = [NoBroker("nobody"), {FIRST: 17}]
    assert await fed.feed.first_offset(FIRST) == 17
    fed.consumer.ends = [ApiError(Error.TOPIC_AUTHORIZATION_FAILED)]
    with refused(Error.TOPIC_AUTHORIZATION_FAILED):
        await fed.feed.first_offset(FIRST)


def test_text_from_a_properties_file_is_parsed_into_values() -> None:
    given_texts = {"auto.commit.enable": "false", "auto.commit.interval.ms": "100"}
    found = read_settings(LEAST | given_texts | {"queued_max_message_chunks": 5})
    assert (found.auto_commit_enable, found.auto_commit_interval_ms) == (False, 100)
    assert found.queued_chunks_max == 5
    assert found.consumer_id is None


def test_an_old_settings_file_is_accepted_as_it_is() -> None:
    old = {"offsets.storage": "zookeeper", "num.consumer.fetchers": "4"}
    assert read_settings(LEAST | old) == read_settings(LEAST)
    with pytest.raises(
        UserError, match=r"offsets\.storage is 'kafka', and must be one of zookeeper"
    ):
        read_settings(LEAST | {"offsets.storage": "kafka"})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"grup.id": "g"}, "has no setting 'grup.id': did you mean group.id?"),
        ({"auto.offset.reset": "earliest"}, "must be one of smallest, largest"),
        ({"auto.commit.enable": 1}, "must be True or False"),
        ({"consumer.timeout.ms": -2}, "must be an integer from -1 to 2147483647"),
        ({"group.id": "a/b"}, "group.id 'a/b' has a character other than"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        read_settings(LEAST | wrong)
    assert sentence in str(refused.value)


def test_a_missing_required_setting_is_named() -> None:
    with pytest.raises(UserError, match=r"a connector needs group\.id"):
        read_settings({"zookeeper.connect": "localhost"})
    with pytest.raises(UserError, match="a dict of settings, not 7"):
        read_settings(7)  # type: ignore[arg-type]


def test_range_assignments_are_those_of_the_old_consumer() -> None:
    # Kafka 0.8's `ZookeeperConsumerConnector`: 5 partitions, consumers of 2 and of 1 streams.
    found = assign("range", {"t": [0, 1, 2, 3, 4]}, {"t": ["c2-0", "c1-1", "c1-0"]})
    assert [found[TopicPartition("t", n)] for n in range(5)] == [
        *("c1-0", "c1-0", "c1-1", "c1-1", "c2-0")
    ]


def test_streams_are_sorted_by_their_text() -> None:
    names = [f"c-{number}" for number in range(11)]
    found = assign("range", {"t": list(range(11))}, {"t": names})
    assert found[TopicPartition("t", 2)] == "c-10"


def test_round_robin_goes_by_the_partitions_hashes() -> None:
    # Java's hashes of "[s,0]", "[s,1]", "[t,0]", "[t,1]" grow in this order.
    found = assign(
        "roundrobin", {"t": [0, 1], "s": [0, 1]}, {"t": ["a-0", "b-0"], "s": ["a-0", "b-0"]}
    )
    assert found == {
        TopicPartition("s", 0): "a-0",
        TopicPartition("s", 1): "b-0",
        TopicPartition("t", 0): "a-0",
        TopicPartition("t", 1): "b-0",
    }


def test_round_robin_needs_members_with_equal_subscriptions() -> None:
    with pytest.raises(UserError, match="these differ in s, t"):
        assign("roundrobin", {"t": [0], "s": [0]}, {"t": ["a-0"], "s": ["a-0", "b-0"]})


@given(COUNTS, GROUPS)
def test_every_partition_that_someone_wants_has_one_owner(
    counts: dict[str, int], streams: dict[str, set[str]]
) -> None:
    found = assign("range", {topic: range(n) for topic, n in counts.items()}, streams)
    wanted = {TopicPartition(t, n) for t in streams for n in range(counts.get(t, 0))}
    assert found.keys() == wanted
    for topic, names in streams.items():
        shares = [
            sum(owner == name for key, owner in found.items() if key.topic == topic)
            for name in sorted(names)
        ]
        assert max(shares) - min(shares) <= 1
        assert shares == sorted(shares, reverse=True), "the first get one more"


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 4)), st.integers(1, 5))
def test_partitions_of_one_broker_stay_together(preferred: dict[int, int], streams: int) -> None:
    partitions = ordered(preferred, by_broker=True)
    names = [f"c{number}" for number in range(streams)]
    found = assign("range", {"t": partitions}, {"t": names})
    # In the order by broker each stream has a run, so it meets few brokers: those of its run.
    owners = [found[TopicPartition("t", number)] for number in partitions]
    assert owners == sorted(owners)
    assert [preferred[number] for number in partitions] == sorted(preferred.values())
    assert ordered(preferred, by_broker=False) == sorted(preferred)


def test_filters_read_commas_as_or_and_match_whole_names() -> None:
    white = Whitelist(' "clicks, view.*" ')
    assert white.expression == "clicks|view.*"
    assert [white.allows(name) for name in ("clicks", "views", "clicks2")] == [True, True, False]
    black = Blacklist("test.*")
    assert [black.allows(name) for name in ("test1", "clicks", "__consumer_offsets")] == [
        *(False, True, False)
    ]
    assert black.allows("__consumer_offsets", exclude_internal=False)


def test_an_invalid_filter_is_refused() -> None:
    with pytest.raises(UserError, match="is not a regular expression"):
        Whitelist("(")
    with pytest.raises(UserError, match="must be text, not 7"):
        Whitelist(7)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"a Whitelist or a Blacklist, not 'clicks\.\*'"):
        Filtered("clicks.*", 1)  # type: ignore[arg-type]


def test_topics_are_given_with_their_streams() -> None:
    with pytest.raises(UserError, match=r"a dict of numbers of streams, not \['t'\]"):
        Topics(["t"])  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, "2", True])
def test_a_number_of_streams_is_one_or_more(count: int) -> None:
    with pytest.raises(UserError, match="must have 1 or more"):
        Topics({"t": count})
    with pytest.raises(UserError, match="must have 1 or more"):
        Filtered(Whitelist("t"), count)


def test_a_registration_says_what_its_consumer_wants() -> None:
    topics = ["clicks", "views", "test1"]

    def streams(pattern: str, counts: dict[str, int]) -> dict[str, int]:
        return read_subscription(ConsumerRegistration(counts, pattern, 0)).streams(topics)

    assert streams("static", {"clicks": 2, "gone": 1}) == {"clicks": 2}
    assert streams("white_list", {"clicks|views": 3}) == {"clicks": 3, "views": 3}
    assert streams("black_list", {"test.*": 1}) == {"clicks": 1, "views": 1}
    with pytest.raises(UserError, match="pattern 'grey_list'"):
        streams("grey_list", {"t": 1})


@pytest.mark.parametrize("module", [assignment, connector, subscription])
def test_the_examples_in_docstrings_are_true(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert (done.failed, done.attempted > 0) == (0, True)
