"""Opening a log: after a clean stop by file names and its last batches, after a crash by a scan.

What a start may find, and what it does about it (complete list: docs/formats/recovery.md):

    a torn or damaged batch beyond the recovery point    cut there (recovery.py)
    an index that is missing, cut, too long, or garbage  rebuilt from the log
    leader epochs or producers missing or damaged        rebuilt from the log
    .deleted, .cleaned, .tmp; an index without a log     removed
    .swap                                                put in place (swapping.py)

Batches below the recovery point were synced, and are not read again. Damage to them is found by a
fetch or by `kdist log verify`; no start cuts or refuses a log for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kdist.config.topic import TopicSettings
from kdist.model import TopicPartition
from kdist.runtime.files import Files
from kdist.storage.deletion import discard_snapshots
from kdist.storage.epochs import LeaderEpochs, decode_epochs
from kdist.storage.faults import CorruptFile
from kdist.storage.log import Log, LogContext
from kdist.storage.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    FileState,
    SegmentName,
    Suffix,
    log_base_offset,
    parse_segment_name,
)
from kdist.storage.producer_loading import loaded_producers, readable_spans
from kdist.storage.recovery import Recovery, SavedOffsets, check_indexes
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment
from kdist.storage.steps import Pace, Steps
from kdist.storage.swapping import complete_swaps

logger = logging.getLogger(__name__)


def new_log(
    context: LogContext,
    partition: TopicPartition,
    directory: str,
    settings: TopicSettings,
    now_ms: int,
) -> Log:
    """An empty log, with nothing on the disk yet."""
    segment = Segment(context.files, directory, 0, 0, now_ms)
    log = Log(context, partition, directory, settings, [segment])
    log.epochs.is_changed = True  # its first flush writes the checkpoint, though it has none
    return log


def load_log(
    context: LogContext,
    partition: TopicPartition,
    directory: str,
    settings: TopicSettings,
    saved: SavedOffsets,
    *,
    is_clean: bool,
    now_ms: int,
) -> Steps[Log]:
    """Load the log in `directory`. If `is_changed` is set, the caller must flush it before use."""
    segments = _find_segments(context, directory)
    is_empty = not segments
    if is_empty:
        segments = [Segment.create(context.files, directory, saved.start_offset, now_ms)]
    epochs = _load_epochs(context.files, directory)
    log = Log(context, partition, directory, settings, segments, epochs)
    if saved.first_dirty_offset is not None:
        log.begin_compaction()
        log.admit_gaps()
    if is_empty:
        log.save_directory()
    # After a power loss, segments that retention deleted may be there again, in part.
    log.retire(log.segments[: log.segment_index(saved.start_offset)])
    end_offset = (yield from _end_of_clean(log)) if is_clean else None
    recovered = (yield from Recovery(log, saved).run()) if end_offset is None else end_offset
    log.set_range(saved.start_offset, recovered)
    if log.start_offset > log.end_offset:
        logger.warning("%r: it ends below its log start offset, and is emptied", log)
        _start_over(log, now_ms)
    has_epochs = epochs is not None
    is_current = has_epochs and end_offset is not None
    yield from _complete_epochs(log, has_epochs=has_epochs, is_current=is_current)
    producers = yield from loaded_producers(log, log.end_offset, saved.recovery_point)
    producers.expire(now_ms, context.settings.producer_id_expiration_ms)
    discard_snapshots(context.files, directory, log.forget_snapshots())
    if end_offset is None:
        log.complete_load(producers, saved.recovery_point)
        log.require_flush(now_ms)
        if not saved.recovery_point:
            _save_creation(log)
    else:
        log.complete_load(producers, log.end_offset)
    if saved.first_dirty_offset is not None:
        _take_first_dirty(log, saved.first_dirty_offset)
    log.active.prime_tail()
    log.close_idle()
    return log


def _save_creation(log: Log) -> None:
    """Have the first flush make it durable: the process that created the log may have been killed.

    It covers the topic's id, if there is one, and the names that lead to the log.
    """
    log.save_path()
    path = f"{log.directory}/{PARTITION_METADATA}"
    if log.context.files.exists(path):
        log.save_topic_id(log.context.files.read(path))


def _take_first_dirty(log: Log, offset: int) -> None:
    """Go on cleaning where the last life ended; from the start where that cannot be right."""
    if log.start_offset <= offset <= log.recovery_point:
        log.note_cleaned(offset)


def _start_over(log: Log, now_ms: int) -> None:
    """Replace a log that has nothing at or above its start offset by an empty one from there."""
    gone = log.segments[::-1]
    log.add_segment(log.start_offset, now_ms)
    log.set_range(log.start_offset, log.start_offset)
    log.retire(gone)  # on `DiskFull`, retention removes the rest: it is below the start offset


def _find_segments(context: LogContext, directory: str) -> list[Segment]:
    """The segments, by file names, after removing what an earlier run left unfinished."""
    complete_swaps(context.files, directory)
    names = context.files.list(directory)
    parsed = {name: parse_segment_name(name) for name in names}
    bases = {base_offset for name in names if (base_offset := log_base_offset(name)) is not None}
    for name, part in parsed.items():
        if name.endswith(".tmp") or (part is not None and _is_left_over(part, bases)):
            context.files.remove(f"{directory}/{name}")
    return [Segment.load(context.files, directory, base_offset) for base_offset in sorted(bases)]


def _is_left_over(part: SegmentName, bases: Iterable[int]) -> bool:
    if part.state is not FileState.LIVE:
        return True
    return part.suffix is not Suffix.SNAPSHOT and part.base_offset not in bases


def _end_of_clean(log: Log) -> Steps[int | None]:
    """The log end offset after a clean stop; None if its last segment turns out not to be whole."""
    yield from check_indexes(log, log.segments)
    try:
        return log.active.read_end_offset()
    except (DamagedSegment, CorruptFile) as fault:
        logger.warning("%s, though the last stop was clean: the log is scanned", fault)
        return None


def _load_epochs(files: Files, directory: str) -> LeaderEpochs | None:
    """The leader epochs by their checkpoint; None if it is missing or damaged.

    It is complete up to the recovery point, since a flush saves it before moving that.
    """
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        content = files.read(path)
        return decode_epochs(content, path) if content else None  # a power loss may leave it empty
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        logger.warning("%s: leader epochs are read from the log instead", fault)
        return None


def _complete_epochs(log: Log, *, has_epochs: bool, is_current: bool) -> Steps[None]:
    """Make the leader epochs match the log; without a checkpoint, read them from all its headers.

    `is_current`: memory and disk agree so far.
    """
    if not has_epochs:
        pace = Pace()
        everything = readable_spans(log, log.segments[0].base_offset, log.end_offset)
        for _, (_, span, _) in everything:
            log.note_epoch(span)
            if pace.is_over(span.size):
                yield None
    log.epochs.truncate_from_end(log.end_offset)
    log.epochs.truncate_from_start(log.start_offset)
    log.epochs.is_changed |= not is_current
