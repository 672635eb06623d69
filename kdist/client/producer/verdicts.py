"""Decides what to do with a batch that a broker refused or did not answer (pure).

    DONE      nothing: it is already in the log, only the answer to an earlier attempt was lost
    RETRY     send it again after a pause, with fresh metadata
    FOLLOW    send it again once the batch before it is acknowledged
    RENUMBER  it was not written: send it under a new epoch, with sequence numbers from 0
    CUT       send it again as two halves
    FAIL      give it up

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
    """The verdict on a batch of `count` records; `is_first`: all batches before it are done."""
    if error is Error.DUPLICATE_SEQUENCE_NUMBER:
        return Verdict.DONE
    if error in _TOO_LARGE:
        return Verdict.CUT if count > 1 else Verdict.FAIL
    if is_idempotent and error in _LOST_TRACK:
        # While an earlier batch is missing, this sequence cannot be next: its turn will come.
        is_behind = error is Error.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
        return Verdict.FOLLOW if is_behind else Verdict.RENUMBER
    return Verdict.RETRY if error.retriable else Verdict.FAIL
