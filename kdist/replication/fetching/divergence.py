"""Where a follower cuts its log off to agree with its leader's (pure).

    the leader's answer                      the follower's own     the log then ends at
    epoch and its end                        that epoch's end       the lower of both ends
    epoch and its end                        only an older epoch    the end of that one: ask again
    epoch and its end                        no epoch so old        the leader's end
    -1: it has no epoch so old               -                      the high watermark (before v12)

The answer is about the largest epoch of the leader's that is not above the follower's newest. Only
epochs count: to cut off at the own high watermark loses what was committed (KIP-101), and to take
the leader's end without comparing own epochs leaves a wrong tail (KIP-279). The last row is what
Kafka does: it concerns leaders that have lost their epochs, and have the old protocol.

Invariant: a leader knows each epoch that has had a record in its log, and where that began. So the
cleaner leaves the first batch of each (`records/_reference_cleaning.py`): whoever has copied a log
without it answers with an older epoch, at whose end what is committed is cut off, or with an end
that is too late, below which what is not committed stays.
"""

from __future__ import annotations

from kdist.storage.epochs import EpochEnd, LeaderEpochs


def truncation_offset(
    epochs: LeaderEpochs, log_end_offset: int, high_watermark: int, leader: EpochEnd
) -> int:
    """The offset to truncate to; the log end offset or more if nothing is to be cut off.

    Below the log start offset nothing of the log is the leader's: it begins anew there.
    """
    if leader.end_offset < 0:
        return high_watermark
    own = epochs.end_offset_for(leader.epoch, log_end_offset)
    if leader.epoch < 0 or own.epoch < 0:
        return min(leader.end_offset, log_end_offset)
    if own.epoch != leader.epoch:
        return min(own.end_offset, log_end_offset)
    return min(own.end_offset, leader.end_offset, log_end_offset)
