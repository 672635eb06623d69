"""The checker of histories: what it finds, each in a small history, and what it lets pass."""

from __future__ import annotations

import pytest

from tests.chaos.checker import count_outcomes, judge, shown_errors, unheard
from tests.chaos.history import (
    OK,
    REFUSED,
    TORN,
    UNKNOWN,
    Answered,
    Began,
    Committed,
    Event,
    Fetched,
    Finished,
    Read,
    Reset,
    Sent,
)

PART = 0


def sent(number: int, producer: str = "p", partition: int = PART) -> Event:
    return Sent(number, producer, partition, number)


def told(number: int, offset: int, outcome: str = OK, producer: str = "p") -> Event:
    return Answered(number + 0.5, producer, PART, number, outcome, offset, "")


def read(offset: int, number: int, reader: str = "r", producer: str = "p", at: float = 50) -> Event:
    return Read(at, reader, PART, offset, f"{producer} {PART} {number}")


def fetched(offset: int, asked: float, at: float) -> Event:
    return Fetched(at, asked, "g", PART, offset)


WHOLE = [
    *(sent(0), sent(1), sent(2), sent(3)),
    *(told(0, 0), told(1, 1), told(2, -1, UNKNOWN), told(3, -1, REFUSED)),
    Began(40, "r", PART, 0),
    *(read(0, 0), read(1, 1)),
    Finished(60, "r"),
]


def found(*events: Event) -> list[str]:
    return [each.kind for each in judge(sorted(events, key=lambda event: event.at_s))]


def test_a_history_in_which_all_is_kept_has_no_anomaly() -> None:
    assert judge(WHOLE) == []


def test_what_was_not_answered_may_be_there_or_not() -> None:
    assert found(*WHOLE, read(2, 2)) == []


def test_what_no_answer_came_for_at_all_may_be_there_or_not() -> None:
    assert found(sent(0), read(0, 0)) == []
    assert found(sent(0), Finished(60, "r")) == []


@pytest.mark.parametrize("end", [Finished(60, "r"), read(1, 1)])
def test_an_acknowledged_record_that_nobody_reads_is_lost(end: Event) -> None:
    assert found(sent(0), told(0, 0), sent(1), end) == ["lost"]


def test_an_acknowledged_record_above_all_that_was_read_may_still_come() -> None:
    assert found(sent(0), told(0, 7), sent(1), read(1, 1)) == []


def test_an_acknowledged_record_of_unknown_offset_is_somewhere() -> None:
    events = [sent(0), told(0, -1), Finished(60, "r")]
    assert found(*events) == ["lost"]
    assert found(*events, read(3, 0)) == []


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    assert found(sent(0), told(0, 0), read(0, 0), read(1, 0)) == ["duplicate"]


def test_a_value_in_two_epochs_of_its_producer_was_sent_twice_by_its_client() -> None:
    events = [sent(0), told(0, 1), read(0, 0, at=50), read(1, 0, at=51)]
    writers = {(PART, 0): (7, 0), (PART, 1): (7, 1)}
    assert [each.kind for each in judge(events, writers.get)] == ["renumbered"]
    writers[PART, 1] = (7, 0)
    assert [each.kind for each in judge(events, writers.get)] == ["duplicate"]


def test_the_second_of_two_is_no_disorder_too() -> None:
    events = [sent(0), sent(1), read(0, 0, at=50), read(1, 1, at=51), read(2, 0, at=52)]
    assert found(*events) == ["duplicate"]


def test_a_value_that_is_elsewhere_than_its_producer_was_told_is_misplaced() -> None:
    assert found(sent(0), told(0, 4), read(0, 0)) == ["misplaced"]


def test_values_in_another_order_than_they_were_sent_are_reordered() -> None:
    assert found(sent(0), sent(1), read(0, 1), read(1, 0)) == ["reordered"]


def test_the_order_is_of_each_producer_alone() -> None:
    events = [sent(5), sent(0, "q"), read(0, 5), read(1, 0, producer="q")]
    assert found(*events) == []


def test_a_value_that_nobody_sent_is_a_phantom() -> None:
    assert found(read(0, 0)) == ["phantom"]


def test_a_value_of_another_partition_is_a_phantom() -> None:
    assert found(sent(0, partition=1), Read(9, "r", PART, 0, "p 1 0")) == ["phantom"]


def test_a_refused_value_that_is_read_is_a_phantom() -> None:
    assert found(sent(0), told(0, -1, REFUSED), read(0, 0)) == ["phantom"]


def test_a_value_that_is_not_whole_is_torn() -> None:
    assert found(Read(9, "r", PART, 0, TORN), Read(9, "r", PART, 1, TORN)) == ["torn", "torn"]


def test_two_values_read_at_one_offset_are_inconsistent() -> None:
    assert found(sent(0), sent(1), read(0, 0, "r"), read(0, 1, "s")) == ["inconsistent"]


def test_two_values_acknowledged_at_one_offset_are_inconsistent() -> None:
    assert found(sent(0), sent(1), told(0, 0), told(1, 0)) == ["inconsistent"]


def test_a_value_read_where_another_was_acknowledged_is_inconsistent() -> None:
    events = [sent(0), told(0, 0), sent(1), read(0, 1)]
    assert sorted(found(*events)) == ["inconsistent", "lost"]


def test_a_reader_that_gets_an_offset_again_goes_backwards() -> None:
    events = [sent(0), sent(1), read(0, 0, at=50), read(1, 1, at=51), read(0, 0, at=52)]
    assert found(*events) == ["backwards"]


def test_a_reader_that_gets_no_record_of_an_offset_has_skipped_it() -> None:
    events = [sent(0), sent(1), Began(40, "r", PART, 0)]
    assert found(*events, read(1, 1)) == ["skipped"]
    assert found(*events, read(0, 0, at=50), read(2, 1, at=51)) == ["skipped"]


def test_a_reader_that_begins_anew_may_begin_anywhere() -> None:
    events = [sent(0), sent(1), read(0, 0, at=50), read(1, 1, at=51)]
    assert found(*events, Began(52, "r", PART, 0), read(0, 0, at=53)) == []


def test_a_reader_whose_position_is_outside_the_log_was_made_to_skip() -> None:
    assert found(Reset(1, "r", PART, "out of range")) == ["skipped"]


READ_BY_GROUP = [sent(0), sent(1), read(0, 0, "g/m", at=1), read(1, 1, "g/m", at=2)]


def test_a_committed_offset_that_goes_back_after_an_acknowledgement() -> None:
    committed = Committed(3, "g", PART, 2)
    assert found(*READ_BY_GROUP, committed, fetched(1, 4, 5)) == ["group back"]
    assert found(*READ_BY_GROUP, committed, fetched(-1001, 4, 5)) == ["group back"]


def test_a_committed_offset_that_goes_back_from_one_answer_to_the_next() -> None:
    assert found(*READ_BY_GROUP, fetched(2, 3, 4), fetched(1, 5, 6)) == ["group back"]


def test_who_asks_before_the_acknowledgement_may_be_told_what_was_before() -> None:
    assert found(*READ_BY_GROUP, Committed(3, "g", PART, 2), fetched(1, 2.5, 5)) == []
    assert found(*READ_BY_GROUP, fetched(-1001, 1, 2), fetched(-1001, 3, 4)) == []


def test_a_committed_offset_above_what_was_given_to_members_is_ahead() -> None:
    assert found(*READ_BY_GROUP, Committed(3, "g", PART, 3)) == ["group ahead"]


def test_each_record_counts_by_what_its_producer_was_told() -> None:
    assert count_outcomes(WHOLE) == {"sent": 4, OK: 2, UNKNOWN: 1, REFUSED: 1}


def test_errors_are_shown_but_those_that_were_meant() -> None:
    meant = [told(0, -1, REFUSED, "large"), told(1, 1)]
    assert list(shown_errors(meant, "large")) == []
    shown = [told(0, -1, UNKNOWN), told(1, -1, REFUSED), told(2, 3, OK, "large")]
    assert len(list(shown_errors(shown, "large"))) == 3


def test_a_client_that_was_never_given_anything_was_not_judged() -> None:
    group = [fetched(-1001, 1, 2), Began(2, "g/m.1", PART, 0), Began(9, "g/m.2", PART, 0)]
    asked = [*WHOLE, *group, sent(0, "q"), Began(40, "s", PART, 0)]
    assert [each.text for each in unheard(asked)] == [
        "group g: no commit",
        "reader g: no record",
        "producer q: no answer",
        "reader s: no record",
    ]
    heard = [told(0, 5, producer="q"), read(0, 0, "s"), read(0, 0, "g/m.1")]
    assert list(unheard([*asked, *heard, Committed(60, "g", PART, 1)])) == []
