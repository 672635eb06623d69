"""Values that say whose they are, and histories that outlive their writer."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.history import (
    OK,
    TORN,
    Answered,
    Finished,
    Journal,
    Sent,
    identity,
    load,
    value_of,
)


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
