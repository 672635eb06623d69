"""Fetch sessions: creation, epochs, what is answered, and eviction."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.broker.fetch_sessions import (
    EVICTION_MS,
    CachedPartition,
    FetchContext,
    FetchSessions,
)
from kdist.errors import ApiError, Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.model import TopicPartition
from kdist.protocol.fetch import (
    DivergingEpoch,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from kdist.security.subjects import ANYBODY
from kdist.testing.virtual_clock import VirtualClock
from tests.examples import examples
from tests.refusals import refused

INT32_MAX = 2**31 - 1
ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)

Results = list[tuple[TopicPartition, FetchPartitionResult]]


def key(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def request(
    numbers: Sequence[int],
    *,
    session: tuple[int, int] = (0, 0),
    forgotten: Sequence[int] = (),
    replica_id: int = -1,
    offset: int = 0,
    topic_id: uuid.UUID | None = None,
) -> FetchRequest:
    """A fetch of partitions of topic t, or of one by its id; `session` is its id and epoch."""
    asked = [
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=100)
        for number in numbers
    ]
    name = {"topic": "t"} if topic_id is None else {"topic_id": topic_id}
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(**name, partitions=asked)] if asked else [],
        forgotten_topics_data=(
            [ForgottenTopic(**name, partitions=list(forgotten))] if forgotten else []
        ),
    )


def result(
    number: int, *, records: bytes = b"", high_watermark: int = 0, start: int = 0, error: int = 0
) -> tuple[TopicPartition, FetchPartitionResult]:
    return key(number), FetchPartitionResult(
        partition_index=number,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=start,
        records=records,
    )


def fetched(context: FetchContext) -> list[CachedPartition]:
    return context.partitions if context.session is None else list(context.session.dirty)


class Stage:
    """Sessions, and a client's way through them."""

    def __init__(self, slots: int = 10) -> None:
        self.clock = VirtualClock()
        self.metrics = ReplicationMetrics()
        self.topics: dict[uuid.UUID, str] = {}
        self.sessions = FetchSessions(
            slots, self.clock, random.Random(0), self.metrics, self.topics.get
        )

    def open(self, asked: FetchRequest, version: int = 12) -> FetchContext:
        return self.sessions.open(asked, version, ANYBODY)

    def close(self, context: FetchContext, results: Results) -> tuple[int, Results]:
        """As `FetchSessions.close`, by the partitions' names."""
        session = context.session
        known = context.partitions if session is None else session.partitions.values()
        cached = {each.key: each for each in known}
        id_, selected = self.sessions.close(
            context, [(cached[name], result) for name, result in results]
        )
        return id_, [(each.key, result) for each, result in selected]

    def create(self, numbers: Sequence[int], *, replica_id: int = -1) -> int:
        """A full fetch; the session id it is answered with."""
        context = self.open(request(numbers, replica_id=replica_id))
        return self.close(context, [result(number) for number in numbers])[0]

    def go_on(self, id_: int, epoch: int, results: Results) -> list[int]:
        """An incremental fetch that names nothing; the partitions it is answered with."""
        context = self.open(request([], session=(id_, epoch)))
        answered, selected = self.close(context, results)
        assert answered == id_
        return [found.partition for found, _ in selected]

    def error(self, asked: FetchRequest, version: int = 12) -> Error:
        with pytest.raises(ApiError) as refused:
            self.open(asked, version)
        return refused.value.error

    def has(self, id_: int) -> bool:
        return id_ in self.sessions._sessions


@pytest.fixture
def stage() -> Stage:
    return Stage()


# --- the table of ids and epochs ------------------------------------------------------------------


def test_no_session_is_created_unless_requested(stage: Stage) -> None:
    context = stage.open(request([1, 2], session=(0, -1)))
    assert [found.key.partition for found in fetched(context)] == [1, 2]
    assert stage.close(context, [result(1), result(2)])[0] == 0
    assert len(stage.sessions) == 0


def test_a_full_fetch_gets_a_session_and_all_partitions(stage: Stage) -> None:
    context = stage.open(request([1, 2]))
    id_, selected = stage.close(context, [result(1), result(2)])
    assert id_ > 0
    assert len(selected) == 2
    assert stage.metrics.fetch_sessions() == 1


def test_an_incremental_fetch_covers_all_partitions_of_its_session(stage: Stage) -> None:
    id_ = stage.create([1, 2])
    context = stage.open(request([], session=(id_, 1)))
    assert [found.key.partition for found in fetched(context)] == [1, 2]


def test_named_partitions_are_added_or_updated_and_forgotten_ones_removed(stage: Stage) -> None:
    id_ = stage.create([1, 2])
    stage.open(request([2, 3], session=(id_, 1), forgotten=[1], offset=9))
    context = stage.open(request([], session=(id_, 2)))
    assert [(each.key.partition, each.asked.fetch_offset) for each in fetched(context)] == [
        (2, 9),
        (3, 9),
    ]


def test_epochs_count_up_and_a_wrong_one_is_refused(stage: Stage) -> None:
    id_ = stage.create([1])
    assert stage.go_on(id_, 1, [result(1)]) == []
    for epoch in (1, 3, 7):
        asked = request([], session=(id_, epoch))
        assert stage.error(asked) is Error.INVALID_FETCH_SESSION_EPOCH
    assert stage.go_on(id_, 2, [result(1)]) == []


def test_the_epoch_after_the_largest_is_1(stage: Stage) -> None:
    id_ = stage.create([1])
    stage.sessions._sessions[id_].epoch = INT32_MAX
    stage.go_on(id_, INT32_MAX, [result(1)])
    stage.go_on(id_, 1, [result(1)])


def test_an_unknown_session_is_not_found(stage: Stage) -> None:
    assert stage.error(request([], session=(77, 1))) is Error.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_the_session_it_names(stage: Stage, epoch: int) -> None:
    id_ = stage.create([1])
    context = stage.open(request([1], session=(id_, epoch)))
    assert not stage.has(id_)
    made, _ = stage.close(context, [result(1)])
    assert (made != 0) == (epoch == 0)


def test_a_session_without_partitions_is_closed(stage: Stage) -> None:
    id_ = stage.create([1])
    context = stage.open(request([], session=(id_, 1), forgotten=[1]))
    assert stage.close(context, []) == (0, [])
    assert not stage.has(id_)


def test_an_answer_overtaken_by_a_later_request_is_an_error(stage: Stage) -> None:
    id_ = stage.create([1])
    late = stage.open(request([], session=(id_, 1)))
    stage.open(request([], session=(id_, 2)))
    with refused(Error.INVALID_FETCH_SESSION_EPOCH):
        stage.close(late, [result(1)])


# --- what is answered -----------------------------------------------------------------------------


def test_only_partitions_with_news_are_in_the_answer(stage: Stage) -> None:
    id_ = stage.create([1, 2, 3, 4])
    news = [
        result(1),
        result(2, records=b"r", high_watermark=5),
        result(3, high_watermark=5),
        result(4, start=2),
    ]
    assert stage.go_on(id_, 1, news) == [2, 3, 4]


def test_what_was_answered_is_not_repeated(stage: Stage) -> None:
    id_ = stage.create([1])
    assert stage.go_on(id_, 1, [result(1, high_watermark=5)]) == [1]
    assert stage.go_on(id_, 2, [result(1, high_watermark=5)]) == []
    assert stage.sessions._sessions[id_].partitions["t", 1].was_told(5, 0)


def test_an_error_is_answered_each_time_and_so_is_its_end(stage: Stage) -> None:
    id_ = stage.create([1])
    assert stage.go_on(id_, 1, [result(1, error=3)]) == [1]
    assert stage.go_on(id_, 2, [result(1, error=3)]) == [1]
    assert stage.go_on(id_, 3, [result(1)]) == [1]
    assert stage.go_on(id_, 4, [result(1)]) == []


def test_a_diverging_epoch_is_answered(stage: Stage) -> None:
    id_ = stage.create([1])
    found = result(1)
    found[1].diverging_epoch = DivergingEpoch(epoch=1, end_offset=2)
    assert stage.go_on(id_, 1, [found]) == [1]


def test_offsets_that_came_with_a_diverging_epoch_are_told_again(stage: Stage) -> None:
    """A follower takes none from such an answer; of an idle partition no other one would come."""
    id_ = stage.create([1])
    diverging, agreeing = (result(1, high_watermark=5, start=3) for _ in range(2))
    diverging[1].diverging_epoch = DivergingEpoch(epoch=1, end_offset=2)
    assert stage.go_on(id_, 1, [diverging]) == [1]
    assert stage.go_on(id_, 2, [diverging]) == [1]
    assert stage.go_on(id_, 3, [agreeing]) == [1]
    assert stage.go_on(id_, 4, [agreeing]) == []


def test_a_partition_that_got_records_is_served_last_next_time(stage: Stage) -> None:
    id_ = stage.create([1, 2, 3])
    stage.go_on(id_, 1, [result(1, records=b"r"), result(2), result(3)])
    context = stage.open(request([], session=(id_, 2)))
    assert [found.key.partition for found in fetched(context)] == [2, 3, 1]


# --- topic ids ------------------------------------------------------------------------------------


def test_a_session_has_names_or_ids_and_not_both(stage: Stage) -> None:
    named = stage.create([1])
    assert stage.error(request([], session=(named, 1)), 13) is Error.FETCH_SESSION_TOPIC_ID_ERROR
    stage.topics[ID] = "t"
    context = stage.open(request([1], topic_id=ID), 13)
    by_id, _ = stage.close(context, [result(1)])
    assert stage.error(request([], session=(by_id, 1)), 12) is Error.FETCH_SESSION_TOPIC_ID_ERROR
    stage.open(request([], session=(by_id, 1)), 17)


def test_a_topic_made_anew_and_the_one_before_are_two_in_a_session(stage: Stage) -> None:
    stage.topics[ID] = "t"
    id_, _ = stage.close(stage.open(request([1], topic_id=ID), 13), [result(1)])
    stage.topics[OTHER_ID] = "t"
    context = stage.open(request([1], session=(id_, 1), topic_id=OTHER_ID), 13)
    assert [(each.topic_id, each.key) for each in fetched(context)] == [
        (ID, key(1)),
        (OTHER_ID, key(1)),
    ]
    context = stage.open(request([], session=(id_, 2), forgotten=[1], topic_id=ID), 13)
    assert [each.topic_id for each in fetched(context)] == [OTHER_ID]


def test_an_id_that_no_topic_has_yet_is_resolved_when_one_has(stage: Stage) -> None:
    (cached,) = stage.open(request([1], topic_id=ID), 13).partitions
    with refused(Error.UNKNOWN_TOPIC_ID):
        cached.resolve(stage.topics.get)
    stage.topics[ID] = "t"
    cached.resolve(stage.topics.get)
    assert cached.key == key(1)
    stage.topics.clear()
    cached.resolve(stage.topics.get)  # what it was is known for as long as it is fetched
    assert cached.named().topic_id == ID


# --- eviction -------------------------------------------------------------------------------------


def test_without_slots_no_session_is_created() -> None:
    assert Stage(slots=0).create([1]) == 0


def test_full_slots_do_not_evict_active_sessions() -> None:
    stage = Stage(slots=2)
    first, second = stage.create([1]), stage.create([1])
    assert stage.create([1, 2, 3]) == 0
    assert stage.has(first)
    assert stage.has(second)


def test_after_two_minutes_the_longest_idle_session_is_evicted() -> None:
    stage = Stage(slots=2)
    first, second = stage.create([1, 2]), stage.create([1, 2])
    stage.clock.advance_ms(EVICTION_MS)
    stage.go_on(first, 1, [])
    assert stage.create([1]) == 0
    stage.clock.advance_ms(1)
    assert stage.create([1]) > 0
    assert stage.has(first)
    assert not stage.has(second)
    assert stage.metrics.evicted_sessions == 1


def test_an_old_session_is_evicted_only_for_a_larger_one() -> None:
    stage = Stage(slots=2)
    small, large = stage.create([1, 2]), stage.create([1, 2, 3])
    stage.clock.advance_ms(EVICTION_MS + 1)
    stage.go_on(small, 1, [])
    stage.go_on(large, 1, [])
    assert stage.create([1, 2]) == 0
    assert stage.create([1, 2, 3]) > 0
    assert not stage.has(small)
    assert stage.has(large)


def test_a_followers_session_evicts_a_consumers_and_never_the_reverse() -> None:
    stage = Stage(slots=1)
    consumer = stage.create([1, 2, 3])
    follower = stage.create([1], replica_id=2)
    assert follower > 0
    assert not stage.has(consumer)
    stage.clock.advance_ms(EVICTION_MS + 1)
    stage.go_on(follower, 1, [])
    assert stage.create([1, 2, 3]) == 0
    assert stage.create([1, 2], replica_id=3) > 0


@examples(200)
@given(st.data())
def test_sessions_agree_with_a_plain_table(data: st.DataObject) -> None:
    """The model: for each session its epoch, its partitions, and what was last told of each."""
    stage = Stage(slots=3)
    model: dict[int, tuple[int, dict[int, int]]] = {}
    marks = dict.fromkeys(range(4), 0)  # high watermarks
    some = st.sets(st.integers(0, 3))
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["full", "go on", "go on", "grow", "wrong"])):
            case "full":
                numbers = sorted(data.draw(some))
                closed = data.draw(st.sampled_from([0, *model]))
                context = stage.open(request(numbers, session=(closed, 0)))
                model.pop(closed, None)
                results = [result(n, high_watermark=marks[n]) for n in numbers]
                id_, selected = stage.close(context, results)
                assert selected == results
                assert (id_ != 0) == (bool(numbers) and len(model) < 3)
                if id_:
                    model[id_] = 1, {n: marks[n] for n in numbers}
            case "go on" if model:
                id_ = data.draw(st.sampled_from(sorted(model)))
                epoch, told = model[id_]
                added, gone = sorted(data.draw(some)), sorted(data.draw(some))
                context = stage.open(request(added, session=(id_, epoch), forgotten=gone))
                for number in added:
                    told.setdefault(number, -1)
                for number in gone:
                    told.pop(number, None)
                assert {each.key.partition for each in fetched(context)} == set(told)
                results = [
                    result(each.key.partition, high_watermark=marks[each.key.partition])
                    for each in fetched(context)
                ]
                answered, selected = stage.close(context, results)
                assert answered == (id_ if told else 0)
                assert {k.partition for k, _ in selected} == {
                    n for n in told if told[n] != marks[n]
                }
                model[id_] = epoch + 1, {n: marks[n] for n in told}
                if not told:
                    del model[id_]
            case "grow":
                marks[data.draw(st.integers(0, 3))] += 1
            case "wrong" if model:
                id_ = data.draw(st.sampled_from(sorted(model)))
                wrong = model[id_][0] + data.draw(st.integers(1, 50))
                asked = request([], session=(id_, wrong))
                assert stage.error(asked) is Error.INVALID_FETCH_SESSION_EPOCH
    assert set(stage.sessions._sessions) == set(model)
