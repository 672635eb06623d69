"""The checker of histories, and the histories and logs that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdist.records.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX_SIZE, BatchHeader, read_header
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
    Journal,
    Read,
    Reset,
    Sent,
    identity,
    load,
    value_of,
)
from tests.chaos.replicas import Writers, broken_sequences, live_replicas, read_logs

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


def batch(offset: int, sequence: int, count: int = 1, producer: int = 7, epoch: int = 0) -> bytes:
    header = BatchHeader(
        base_offset=offset,
        batch_length=HEADER_SIZE - LENGTH_PREFIX_SIZE,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )
    return HEADER.pack(*header)


ONE, TWO, THREE = batch(0, 0, 2), batch(2, 2), batch(3, 3)


def replica(root: Path, broker: str, *segments: bytes) -> Path:
    directory = root / broker / "chaos-0"
    directory.mkdir(parents=True)
    for number, content in enumerate(segments):
        (directory / f"{number:020}.log").write_bytes(content)
    return directory.parent


def faults(*directories: Path) -> list[str]:
    return read_logs(directories, "chaos").faults


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


def test_a_value_says_who_sent_it() -> None:
    assert identity(value_of("librdkafka1.0", 3, 17)) == "librdkafka1.0 3 17"
    assert identity(value_of("large", 0, 1, 50_000)) == "large 0 1"


def test_a_value_is_torn_if_any_byte_of_it_is_another() -> None:
    value = value_of("p", 0, 1)
    for n in range(len(value)):
        assert identity(value[:n] + bytes([value[n] ^ 1]) + value[n + 1 :]) == TORN
        assert identity(value[:n]) == TORN
    assert identity(None) == TORN


def test_histories_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "other"]
    told = Answered(3.0, "p", 0, 0, OK, 0, "")
    for path, events in zip(
        paths, ([Sent(1.0, "p", 0, 0), told], [Finished(2.0, "r")]), strict=True
    ):
        journal = Journal(path)
        for event in events:
            journal.note(event)
        journal.close()
    assert load(paths) == [Sent(1.0, "p", 0, 0), Finished(2.0, "r"), told]


def test_a_last_line_that_was_cut_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text('["finished", 1.0, "r"]\n["finished", 2.0, "s')
    assert load([path]) == [Finished(1.0, "r")]


def test_replicas_may_have_begun_their_segments_at_different_offsets(tmp_path: Path) -> None:
    parted, whole = (
        replica(tmp_path, "1", ONE + TWO, THREE),
        replica(tmp_path, "2", ONE, TWO + THREE),
    )
    assert faults(parted, whole) == []


def test_replicas_that_hold_different_bytes_differ(tmp_path: Path) -> None:
    other = batch(3, 3, producer=8)
    one, two = replica(tmp_path, "1", ONE, TWO, THREE), replica(tmp_path, "2", ONE, TWO, other)
    assert faults(one, two) == ["chaos-0: its replicas differ (183, 183 bytes)"]


def test_a_replica_that_is_shorter_differs(tmp_path: Path) -> None:
    one, two = replica(tmp_path, "1", ONE, TWO, THREE), replica(tmp_path, "2", ONE, TWO)
    assert faults(one, two) == ["chaos-0: its replicas differ (183, 122 bytes)"]


def test_a_replica_that_is_not_there_is_missing(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    one = replica(tmp_path, "1", ONE)
    assert faults(one, tmp_path / "2") == ["chaos-0 is in 1 of 2 log directories"]


def test_what_was_moved_away_and_is_being_deleted_is_no_replica(tmp_path: Path) -> None:
    one, two = replica(tmp_path, "1", ONE), replica(tmp_path, "2", ONE)
    unique = "0" * 32
    (two / f"moved-1.{unique}-delete").mkdir()
    (two / f"moved-2.{unique}-stray").mkdir()
    (two / "meta.properties").touch()
    assert live_replicas(two) == ["chaos-0"]
    assert faults(one, two) == []


def test_each_record_has_the_producer_of_its_batch(tmp_path: Path) -> None:
    written = replica(tmp_path, "1", ONE + batch(2, 0, 2, producer=9, epoch=3))
    writers = read_logs([written], "chaos").writers[0]
    assert [writers.at(offset) for offset in range(4)] == [(7, 0), (7, 0), (9, 3), (9, 3)]
    assert Writers([]).at(0) is None


def broken(*batches: bytes) -> list[str]:
    return list(broken_sequences([read_header(each) for each in batches]))


def test_a_producers_sequences_follow_one_another_within_its_epoch() -> None:
    assert broken(ONE, batch(2, 0, producer=8), TWO, batch(4, 0, epoch=1), THREE) == []


def test_a_sequence_that_comes_again_or_is_left_out_is_broken() -> None:
    assert broken(ONE, TWO, TWO) == ["(7, 0) has sequence 2 at 2, not 3"]
    assert broken(ONE, THREE) == ["(7, 0) has sequence 3 at 3, not 2"]
    assert broken(TWO) == ["(7, 0) has sequence 2 at 2, not 0"]


def test_batches_without_a_producer_id_have_no_sequences() -> None:
    assert broken(batch(0, -1, producer=-1, epoch=-1), batch(1, -1, producer=-1, epoch=-1)) == []
