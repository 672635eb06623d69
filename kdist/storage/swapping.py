"""Exchanging segments for a compacted one: the order of renames, and finishing them at a start.

    .cleaned          the cleaner is writing it: a start removes it
    .swap             it is whole and durable, and takes the place of the segments it covers
    live              the others are retired before it gets its name

The names are Kafka's, and mean the same there: so either finishes what the other began. Each phase
is made durable before the next, as a power loss keeps renames in any order. The `.log` is renamed
last: so a `.log.swap` has its indexes beside it, and they can be rebuilt anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kdist.errors import UserError
from kdist.runtime.files import Files
from kdist.storage.names import FileState, Suffix, parse_segment_name, segment_name
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)

# A transaction index is not renamed, but dropped: a cleaned segment has no aborted records.
IN_ORDER = (Suffix.INDEX, Suffix.TIME_INDEX, Suffix.LOG)


def begin_swap(files: Files, directory: str, base_offset: int) -> None:
    """Make a `.cleaned` segment a `.swap`, durably: from here on a start completes it.

    Any other `.cleaned` goes: one left of a pass that was given up, with a lower offset, would have
    the start undo the swap, of which the old segments may be gone by then. May be repeated.
    """
    for name in files.list(directory):
        part = parse_segment_name(name)
        if part is not None and part.state is FileState.CLEANED and part.base_offset != base_offset:
            files.remove(f"{directory}/{name}")
    _rename_all(files, directory, base_offset, FileState.CLEANED, FileState.SWAP)


def _rename_all(
    files: Files, directory: str, base_offset: int, old: FileState, new: FileState
) -> None:
    """Rename the files of a segment from one state to the next, durably. May be repeated."""
    for suffix in IN_ORDER:
        path = f"{directory}/{segment_name(base_offset, suffix, old)}"
        if files.exists(path):
            files.rename(path, f"{directory}/{segment_name(base_offset, suffix, new)}")
    files.sync_directory(directory)


def put_in_place(
    files: Files, directory: str, old: Sequence[Segment], base_offset: int, retired: list[str]
) -> None:
    """Retire the old segments, then give the `.swap` its name.

    Adds the retired files' new paths to `retired`. Blocks. May be repeated after `DiskFull`.
    """
    for segment in reversed(old):
        retired += segment.retire()
    files.sync_directory(directory)
    _rename_all(files, directory, base_offset, FileState.SWAP, FileState.LIVE)


def remove_all(files: Files, directory: str, state: FileState) -> None:
    """Remove all files of a state that a cleaner has left. Blocks."""
    for name in files.list(directory):
        part = parse_segment_name(name)
        if part is not None and part.state is state:
            files.remove(f"{directory}/{name}")


def complete_swaps(files: Files, directory: str) -> None:
    """Finish, or undo, what a cleaner was doing in a log's directory when it ended.

    As Kafka does: where a `.cleaned` is left, the swaps from there on are of a segment that was
    being split, and whose whole is still there.
    """
    parts = [part for name in files.list(directory) if (part := parse_segment_name(name))]
    cleaned = [part.base_offset for part in parts if part.state is FileState.CLEANED]
    swaps = [part for part in parts if part.state is FileState.SWAP]
    whole = {
        part.base_offset
        for part in swaps
        if part.suffix is Suffix.LOG and part.base_offset < min(cleaned, default=1 << 63)
    }
    for part in swaps:
        if part.base_offset not in whole:
            files.remove(f"{directory}/{segment_name(*part)}")
    live = {
        part.base_offset
        for part in parts
        if (part.suffix, part.state) == (Suffix.LOG, FileState.LIVE)
    }
    for base_offset in sorted(whole):
        end_offset = _end_of(files, directory, base_offset)
        logger.info("%s: the compaction of segment %d is completed", directory, base_offset)
        covered = [
            Segment.load(files, directory, base)
            for base in sorted(live)
            if base == base_offset or base_offset < base < end_offset
        ]
        put_in_place(files, directory, covered, base_offset, [])


def _end_of(files: Files, directory: str, base_offset: int) -> int:
    """Where the batches of a `.swap` end. All segments that begin before were merged into it."""
    segment = Segment.load(files, directory, base_offset, FileState.SWAP)
    end_offset = base_offset
    try:
        for _, span, _ in segment.walk_spans(0):
            end_offset = span.last_offset + 1
    except DamagedSegment as damage:
        raise UserError(
            f"{damage}: so it is unknown which segments it replaces; move it elsewhere, then fetch"
            " the partition from another replica"
        ) from damage
    finally:
        segment.close()
    return end_offset
