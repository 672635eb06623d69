"""Commits under way: the last in the log wins, whatever order their ends come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdist.groups.offsets import CommittedOffset, GroupOffsets
from kdist.groups.totals import Totals
from kdist.model import TopicPartition

WHERE = TopicPartition("t", 0)


@given(st.data())
def test_the_last_successful_commit_in_the_log_wins(data: st.DataObject) -> None:
    offsets = GroupOffsets()
    count = data.draw(st.integers(1, 6))
    succeeds = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    commits = [{WHERE: CommittedOffset(number)} for number in range(count)]
    numbers = [offsets.begin(each) for each in commits]
    for index in data.draw(st.permutations(range(count))):
        assert offsets.is_under_way(WHERE)
        if succeeds[index]:
            offsets.finish(numbers[index], commits[index])
        else:
            offsets.fail(numbers[index], commits[index])
    expected = max((index for index in range(count) if succeeds[index]), default=-1)
    assert offsets.get(WHERE).offset == expected
    assert not offsets.is_under_way(WHERE)
    assert bool(offsets) == (expected >= 0)


@given(st.data())
def test_a_deletion_counts_as_a_commit_of_nothing(data: st.DataObject) -> None:
    totals = Totals()
    offsets = GroupOffsets(totals)
    offsets.load(WHERE, CommittedOffset(7))
    kinds = data.draw(st.lists(st.sampled_from(("commit", "delete", "fail")), min_size=1))
    numbers = [offsets.begin([WHERE]) for _ in kinds]
    for index in data.draw(st.permutations(range(len(kinds)))):
        if kinds[index] == "commit":
            offsets.finish(numbers[index], {WHERE: CommittedOffset(index)})
        elif kinds[index] == "delete":
            offsets.finish_deletion(numbers[index], [WHERE])
        else:
            offsets.fail(numbers[index], [WHERE])
    last = max((index for index, kind in enumerate(kinds) if kind != "fail"), default=-1)
    expected = 7 if last < 0 else last if kinds[last] == "commit" else -1
    assert offsets.get(WHERE).offset == expected
    assert not offsets.is_under_way(WHERE)
    assert totals.offsets == len(offsets) == (expected >= 0)


def test_a_commit_begun_before_its_topic_was_deleted_does_not_come_back() -> None:
    offsets = GroupOffsets()
    before, after = {WHERE: CommittedOffset(1)}, {WHERE: CommittedOffset(2)}
    first = offsets.begin(before)
    assert offsets.forget([WHERE]) == [WHERE]
    second = offsets.begin(after)
    offsets.finish(first, before)
    assert offsets.get(WHERE).offset == -1
    offsets.fail(second, after)
    assert not offsets
