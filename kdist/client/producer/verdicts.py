"""What becomes of a batch that a broker refused or did not answer (pure).

    DONE      it is in the log: written before, and the answer got lost
    RETRY     again after a pause, and with fresh metadata
    FOLLOW    again as soon as the batch before it is acknowledged
    RENUMBER  again, under a new epoch with sequences from 0: it was not written
    CUT       again, as two halves
    FAIL      never

Source: KIP-98, KIP-360, and Java's `Sender` and `TransactionManager`.
"""

from __future__ import annotations

import enum

from kdist.errors import Error


class Verdict(enum.Enum):
    """See the table above."""

    DONE = enum.auto()
    RETRY = enum.auto()
    FOLLOW = enum.auto()
    RENUMBER = enum.auto()
    CUT = enum.auto()
    FAIL = enum.auto()


_TOO_LARGE = (Error.MESSAGE_TOO_LARGE, Error.RECORD_LIST_TOO_LARGE)
_LOST_TRACK = (
    Error.UNKNOWN_PRODUCER_ID,
    Error.INVALID_PRODUCER_EPOCH,
    Error.PRODUCER_FENCED,
    Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


def judge(error: Error, count: int, *, is_first: bool, is_idempotent: bool) -> Verdict:
    """The verdict on a batch of `count` records; `is_first`: none before it is still under way."""
    if error is Error.DUPLICATE_SEQUENCE_NUMBER:
        return Verdict.DONE
    if error in _TOO_LARGE:
        return Verdict.CUT if count > 1 else Verdict.FAIL
    if is_idempotent and error in _LOST_TRACK:
        # Behind one that was refused, the sequence cannot be the next: its turn will come.
        is_behind = error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
        return Verdict.FOLLOW if is_behind else Verdict.RENUMBER
    return Verdict.RETRY if error.retriable else Verdict.FAIL
