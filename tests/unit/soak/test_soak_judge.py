"""The judge of the soak: what a journal shows, and what it excuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.judge import LATE_S, STALL_S_MAX, judge

FIRST, OTHER = 1, 2  # members' lives
GOT = [
    [10.0, FIRST, "got", 0, 0, 70],
    [11.0, FIRST, "got", 0, 1, 71],
    [12.0, FIRST, "got", 1, 0, 72],
]
AGAIN = [20.0, OTHER, "got", 0, 1, 71]
ALL = {70, 71, 72}


def test_a_journal_with_all_records_once_shows_nothing() -> None:
    assert judge([*GOT, ["stall", STALL_S_MAX], ["left over", []]], ALL) == []


@pytest.mark.parametrize(
    ("lines", "acknowledged", "found"),
    [
        (GOT, {*ALL, 99}, "1 skipped: 99"),
        ([GOT[1]], {71}, "1 skipped: (0, 0)"),
        ([*GOT, AGAIN], ALL, "1 given twice: (0, 1) to 1 and 2"),
        ([*GOT, [20.0, OTHER, "got", 0, 2, 71]], ALL, "1 written twice: 71 at (0, 2) and (0, 1)"),
        ([*GOT, ["stall", 0.3]], ALL, "1 stalled: 0.30 s"),
        ([*GOT, ["left over", ["a thread"]]], ALL, "1 left over: a thread"),
    ],
)
def test_what_no_group_may_do_is_told(
    lines: list[list[Any]], acknowledged: set[int], found: str
) -> None:
    assert judge(lines, acknowledged) == [found]


@pytest.mark.parametrize(
    ("at_s", "life", "is_excused"),
    [
        (11.0, FIRST, True),
        (15.0, None, True),  # the log of a process does not say which of its members it was
        (20.0 + LATE_S, FIRST, True),
        (10.9, FIRST, False),
        (20.1 + LATE_S, FIRST, False),
        (15.0, OTHER, False),
    ],
)
def test_records_come_twice_only_after_a_commit_of_their_first_reader_was_refused(
    at_s: float, life: int | None, is_excused: bool
) -> None:
    refusal = [at_s, life, "refused", "CommitFailed"]
    assert (judge([*GOT, AGAIN, refusal], ALL) == []) is is_excused
