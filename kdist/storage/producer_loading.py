"""Loading a log's producer states from the newest sound snapshot and the batches after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from kdist.records.codec import producer_headers
from kdist.storage.faults import CorruptFile
from kdist.storage.log import Log
from kdist.storage.names import Suffix, segment_name, snapshot_offset
from kdist.storage.producer_snapshot import load_snapshot
from kdist.storage.producers import BATCHES_KEPT, ProducerStates, replay
from kdist.storage.scan import DamagedSegment, Piece
from kdist.storage.segment import Segment
from kdist.storage.steps import Pace, Steps

logger = logging.getLogger(__name__)


Own = Callable[[Segment], Segment]
"""Of a segment of a log, the object through which this thread may read it."""


def loaded_producers(
    log: Log,
    end_offset: int,
    save_from: int | None = None,
    own: Own = lambda segment: segment,
) -> Steps[ProducerStates]:
    """The producer states at `end_offset`. Damaged snapshots are removed. Reads the log only.

    With `save_from`, the next flush writes the snapshots that segments from that offset on lack,
    also below a newer one, as a power loss may leave any of those that a flush was writing: what
    compaction removes later for a newer batch of its producer is still needed once that batch is
    truncated.
    """
    if save_from is not None:
        for segment in log.segments[1:]:
            base_offset = segment.base_offset
            if base_offset >= save_from and _snapshot(log, base_offset) is None:
                states = yield from _replayed(log, base_offset, own)
                log.save_producers_at(base_offset, states)
    return (yield from _replayed(log, end_offset, own))


def _replayed(log: Log, end_offset: int, own: Own) -> Steps[ProducerStates]:
    """The states at `end_offset`: of the newest sound snapshot, and the batches after it."""
    offset, states = _newest_snapshot(log, end_offset)
    pace = Pace()
    for segment, (position, span, data) in readable_spans(log, offset, end_offset, own):
        if span.has_producers:
            for place, header in producer_headers(data, span.size, BATCHES_KEPT):
                is_needed = header.is_control  # `data` may end inside a batch
                batch = segment.file.read(position + place, header.size) if is_needed else b""
                replay(states, header, batch, segment.path)
                if pace.is_over(0):
                    yield None
        if pace.is_over(span.size):
            yield None
    return states


def _newest_snapshot(log: Log, end_offset: int) -> tuple[int, ProducerStates]:
    waiting = [path.rpartition("/")[2] for path in list(log.files_to_save)]
    names = [*log.context.files.list(log.directory), *waiting]
    offsets = {offset for name in names if (offset := snapshot_offset(name)) is not None}
    for offset in sorted(offsets, reverse=True):
        if offset <= end_offset and (states := _snapshot(log, offset)) is not None:
            return offset, states
    return log.start_offset, ProducerStates()


def _snapshot(log: Log, offset: int) -> ProducerStates | None:
    """By what the next flush writes, else by the file; None if there is none that is sound."""
    path = f"{log.directory}/{segment_name(offset, Suffix.SNAPSHOT)}"
    waiting = log.files_to_save.get(path)
    if isinstance(waiting, ProducerStates):
        return waiting.copy()
    files = log.context.files
    try:
        return load_snapshot(files, path)
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        logger.warning("%s: producers are read from the log instead", fault)
        files.remove(path)
        return None


def readable_spans(
    log: Log, offset: int, end_offset: int, own: Own = lambda segment: segment
) -> Iterator[tuple[Segment, Piece]]:
    """Many batches at a time, with their segment, from the first that ends at or after `offset` up
    to the one that holds `end_offset`.

    A damaged header hides the rest of its segment, as it does from every reader.
    """
    if offset >= end_offset:
        return
    first, last_number = log.segment_index(offset), log.segment_index(end_offset - 1)
    for segment in map(own, log.segments[first : last_number + 1]):
        try:
            found = segment.find_despite_index(offset)
            if found is not None:
                is_end = end_offset >= log.end_offset
                last = None if is_end else segment.find_despite_index(end_offset)
                for piece in segment.walk_spans(found[0], end=last and last[0]):
                    yield segment, piece
        except DamagedSegment as damage:
            logger.error("%s: the rest of this segment cannot be read", damage)
        segment.close_idle()
