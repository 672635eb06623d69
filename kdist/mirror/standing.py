"""Where a mirror stands in a partition: found out from the target's own log, whenever in doubt.

The last batch of the target partition that bears the mirror's mark says it (`trace.py`). It is the
very last one, unless others write there too: then the log is read from where it ended when the
mirror last committed, a note that every commit to the source carries. A commit by `kdist mirror
seek` carries another note, and wins over the log; so does the mirror's own commit of such a
position, and of one that nothing but markers lead to, until the log says it, too. A partition that
is mirrored no more has the reason in its note, for `kdist mirror status`, until it goes on.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple, TypeGuard

from kdist.client.cluster import Cluster
from kdist.client.offsets import OffsetAndMetadata, find_ranges
from kdist.errors import ApiError, Error, UserError
from kdist.mirror.looking import look_at
from kdist.mirror.trace import Run, last_run
from kdist.model import NO_EPOCH, TopicPartition

logger = logging.getLogger(__name__)

SOUGHT = "sought"  # what the note begins with of a commit that wins over the target's log
_NOTE = re.compile(rf"(?:{SOUGHT} )?target=(\d+)(?: stopped: (.*))?", re.DOTALL)
_REASON_LENGTH_MAX = 1000  # a broker takes 4096 characters beside an offset


class Standing(NamedTuple):
    """Where to go on reading the source; `run` is what the target's log ends with, if it is ours.

    `position` None: the partition was never mirrored. `target_end` is the target's log end.
    """

    position: int | None
    leader_epoch: int
    run: Run | None
    target_end: int


def note_of(target_end: int, *, wins: bool = False, stopped: object = None) -> str:
    """The note of a commit: where the target's log ended then, and whether it wins over that.

    `stopped` is why the partition is mirrored no more, if it is not.
    """
    note = f"{SOUGHT} target={target_end}" if wins else f"target={target_end}"
    return note if stopped is None else f"{note} stopped: {stopped}"[:_REASON_LENGTH_MAX]


def why_stopped(note: str) -> str | None:
    """Why a partition with this note is mirrored no more; None if it is, for all that is known."""
    noted = _NOTE.fullmatch(note)
    return noted[2] if noted else None


async def find_standing(
    cluster: Cluster,
    target: TopicPartition,
    mark: int,
    committed: OffsetAndMetadata | None,
) -> Standing:
    """Ask the target. `UserError` if it no longer has what was acknowledged; `ApiError`."""
    start, end = (await find_ranges(cluster, [target]))[target]
    noted = _NOTE.fullmatch(committed.metadata) if committed else None
    noted_end = int(noted[1]) if noted else None
    run = await _find_run(cluster, target, mark, noted_end, (start, end))
    has_lost = noted_end is not None and end < noted_end
    # What an unclean election took takes the position back; what goes on from it had another log.
    if has_lost and (run is None or committed is None or run.next_offset > committed.offset):
        raise copy_made_anew(target, end, noted_end or 0, has_ours=run is not None)
    if _wins(committed, run) and not has_lost:
        return Standing(committed.offset, committed.leader_epoch, run, end)
    if run is not None:
        same = committed is not None and committed.offset == run.next_offset
        epoch = committed.leader_epoch if committed is not None and same else NO_EPOCH
        return Standing(run.next_offset, epoch, run, end)
    if committed is None:
        return Standing(None, NO_EPOCH, None, end)
    return Standing(committed.offset, committed.leader_epoch, None, end)


async def find_end(
    cluster: Cluster, target: TopicPartition, mark: int, run: Run | None, known_end: int
) -> int:
    """The target's log end now. `run` was its last of ours, or None, when it ended at `known_end`.

    `ApiError` if another mirror has gone on meanwhile, or the log has lost its end.
    """
    bounds = (await find_ranges(cluster, [target]))[target]
    _, end = bounds
    found = await _find_run(cluster, target, mark, known_end, bounds)
    if end < known_end or found not in (None, run):
        raise ApiError(
            Error.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"another mirror has gone on with {target} of the target, or it has lost its end",
        )
    return end


def copy_made_anew(
    target: TopicPartition, end: int, known_end: int, *, has_ours: bool
) -> UserError:
    """What is said of a target that lacks what it had; `has_ours` if it got more of ours since."""
    before = "stop the mirror, delete it once more, and then " if has_ours else ""
    return UserError(
        f"{target} of the target ends at offset {end}, but was mirrored into up to {known_end}:"
        f" was it deleted and made anew? {before}`kdist mirror seek` says from where to fill it"
        " again"
    )


def _wins(committed: OffsetAndMetadata | None, run: Run | None) -> TypeGuard[OffsetAndMetadata]:
    """Whether somebody said to go on from further than the target's log says."""
    if committed is None or not committed.metadata.startswith(SOUGHT):
        return False
    return run is None or run.next_offset < committed.offset


async def _find_run(
    cluster: Cluster,
    target: TopicPartition,
    mark: int,
    noted_end: int | None,
    bounds: tuple[int, int],
) -> Run | None:
    start, end = bounds
    if start == end:
        return None  # empty, perhaps by retention
    run = last_run((await look_at(cluster, target, end - 1, 1)).headers(), mark)
    if run is not None:
        return run
    offset = start if noted_end is None else min(max(start, noted_end - 1), end)
    if end - offset > 1:
        logger.info("others write to %s: looking for our last batch from %d on", target, offset)
    while offset < end:
        headers = list((await look_at(cluster, target, offset)).headers())
        if not headers:
            break  # what is left was compacted away
        run = last_run(headers, mark) or run
        offset = headers[-1].next_offset
    return run
