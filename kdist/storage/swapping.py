"""Exchanging a log's segments for a compacted one, and finishing that at a start.

    the log is busy from here on: no flush, no truncation, no retention
    .cleaned -> .swap, durably       a thread     it is whole: from here on a start completes it
    the log reads the new segment    the loop     readers of the old ones read on: files stay open
    the old are retired, durably     a thread
    .swap -> its name, durably
    the log is free again            the loop

Appends and reads go on all the time. Where the last two steps on the disk find no room, the swap
waits, and the log is free for flushes and its deletion. What would change its segments has no
better chance of finding room, since it begins with the same renames: a truncation is refused,
retention looks later.

The names are Kafka's, and mean the same there: so either finishes what the other began. Each phase
is made durable before the next, as a power loss keeps renames in any order. The `.log` is renamed
last: so a `.log.swap` has its indexes beside it, and they can be rebuilt anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import product

from kdist.errors import ApiError, DiskFull, Error, UserError
from kdist.runtime.files import Files
from kdist.runtime.tasks import Done
from kdist.storage.background import DirectoryContext
from kdist.storage.flushing import Flusher
from kdist.storage.log import Log
from kdist.storage.names import FileState, Suffix, parse_segment_name, segment_name
from kdist.storage.scan import DamagedSegment
from kdist.storage.segment import Segment

logger = logging.getLogger(__name__)

# A transaction index is not renamed, but dropped: a cleaned segment has no aborted records.
_IN_ORDER = (Suffix.INDEX, Suffix.TIME_INDEX, Suffix.LOG)
_RETRY_MS = 1_000  # on a full disk


class Swap:
    """One exchange. Owner: the cleaner. The log must not be busy, and have all of `old`."""

    def __init__(
        self,
        context: DirectoryContext,
        flusher: Flusher,
        log: Log,
        old: Sequence[Segment],
        mapped_end: int,
        done: Done,
    ) -> None:
        self._context = context
        self._flusher = flusher
        self._files = context.files
        self._log = log
        self._old = old
        self._mapped_end = mapped_end
        self._done = done
        self._base_offset = old[0].base_offset
        self._retired: list[str] = []
        self._new: Segment | None = None
        self._is_waiting = False

    def begin(self) -> None:
        """Start; `done` gets `DiskFull` if there is no room, and then nothing has changed."""
        log = self._log
        log.begin_swap(self._mapped_end)
        try:
            self._new = new = Segment.load(
                self._files, log.directory, self._base_offset, FileState.CLEANED
            )
            new.modified_ms = max(each.modified_ms for each in self._old)
            new.pin()
            new.sync_targets(is_sealed=True)  # opens them: later their names change
        except DiskFull as error:
            self._give_up(error)
            return
        rename = partial(begin_swap, self._files, log.directory, self._base_offset)
        self._context.tasks.run_blocking(rename, self._renamed)

    def _renamed(self, error: BaseException | None) -> None:
        if isinstance(error, DiskFull):
            self._give_up(error)
        elif error is not None:
            self._context.on_failure(error)
        else:
            assert self._new is not None
            self._new.take_names(FileState.SWAP)
            self._log.replace_segments(self._old, self._new)
            self._put_in_place()

    def _give_up(self, error: DiskFull) -> None:
        log, files = self._log, self._files
        if self._new is not None:
            self._new.close()
            self._new.unpin()

        def clear() -> None:
            # By name: no descriptor may be left to list the directory. The `.log.swap` goes first.
            for state, suffix in product((FileState.SWAP, FileState.CLEANED), reversed(_IN_ORDER)):
                path = f"{log.directory}/{segment_name(self._base_offset, suffix, state)}"
                if files.exists(path):
                    files.remove(path)

        def cleared(failure: BaseException | None) -> None:
            if failure is not None and not isinstance(failure, ApiError):
                self._context.on_failure(failure)
                return
            self._end(error)

        self._context.tasks.run_blocking(clear, cleared)

    def _put_in_place(self) -> None:
        files, log = self._files, self._log
        snapshots = [
            f"{log.directory}/{segment_name(each.base_offset, Suffix.SNAPSHOT)}"
            for each in self._old[1:]
        ]

        def work() -> None:
            put_in_place(files, log.directory, self._old, self._base_offset, self._retired)
            for path in filter(files.exists, snapshots):
                files.remove(path)

        self._context.tasks.run_blocking(work, self._placed)

    def _placed(self, error: BaseException | None) -> None:
        log, new, log_context = self._log, self._new, self._log.context
        if isinstance(error, DiskFull):
            if not self._is_waiting:
                logger.warning(
                    "%r: a cleaned segment waits for room to get its name: %s", log, error
                )
            self._is_waiting = True
            log.pause_swap()
            self._flusher.request(log)  # some may have waited
            self._context.tasks.call_later(_RETRY_MS, self._retry)
            return
        if error is not None:
            self._context.on_failure(error)
            return
        assert new is not None
        new.take_names(FileState.LIVE)
        new.unpin()
        log_context.discard(self._retired, log.settings.file_delete_delay_ms)
        self._end(None)

    def _retry(self) -> None:
        log = self._log
        if log.is_closed:
            assert self._new is not None
            self._new.unpin()  # the log has closed it
            self._done(ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION, "the log was deleted"))
        elif log.is_busy:
            self._flusher.request(log, lambda _: self._retry())
        else:
            log.resume_swap()
            self._put_in_place()

    def _end(self, error: BaseException | None) -> None:
        self._log.end_swap()
        self._log.forget_snapshots()
        self._flusher.request(self._log)  # some may have waited
        self._done(error)


def begin_swap(files: Files, directory: str, base_offset: int) -> None:
    """Make a `.cleaned` segment a `.swap`, durably: from here on a start completes it.

    Any other `.cleaned` goes: one left of a pass that was given up, with a lower offset, would have
    the start undo the swap, of which the old segments may be gone by then. May be repeated.
    """
    remove_cleaned(files, directory, except_of=base_offset)
    _rename_all(files, directory, base_offset, FileState.CLEANED, FileState.SWAP)


def _rename_all(
    files: Files, directory: str, base_offset: int, old: FileState, new: FileState
) -> None:
    """Rename the files of a segment from one state to the next, durably. May be repeated."""
    for suffix in _IN_ORDER:
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


def remove_cleaned(files: Files, directory: str, except_of: int | None = None) -> None:
    """Remove all `.cleaned` that a cleaner has left, but for those of this segment. Blocks."""
    for name in files.list(directory):
        part = parse_segment_name(name)
        if part is not None and part.state is FileState.CLEANED and part.base_offset != except_of:
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
