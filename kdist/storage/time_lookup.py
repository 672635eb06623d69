"""The offset for a timestamp, in steps, as a log may have to be read from the disk for it.

A look-up reads two indexes, some headers and a batch, of segments that nobody may have read for
days: on the event loop a request for hundreds of partitions would take longer than a session. So it
has handles of its own, which read only what is in the page cache. What is not there is read by a
thread, and then tried again. The indexes' entries that are only in memory are done without: a look
at some more headers finds the same.

Between two steps the log may change. A segment that was replaced or cut meanwhile is looked up
anew; what was found in it before that is as true as an answer a moment earlier. Of a log that was
deleted no file is opened any more: at its path there may be another's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar, cast

from kdist.errors import ApiError, CorruptFile, CorruptRecords, Error
from kdist.model import NO_TIMESTAMP
from kdist.records.batch import BatchHeader, read_header
from kdist.records.build import BRIEF_BODY_BYTES, body_numbers, read_body, read_brief_body
from kdist.runtime.files import File, Files
from kdist.runtime.steps import Steps, in_thread
from kdist.storage.log import Log
from kdist.storage.names import FileState
from kdist.storage.scan import Piece
from kdist.storage.segment import Segment
from kdist.wire.primitives import Buffer

logger = logging.getLogger(__name__)
T = TypeVar("T")

_READ_BYTES = 256 << 10  # at least, by a thread: a walk goes on where it has read
_STEP_SPANS = 16  # looked at in one step: up to 4 MiB of log


class TimestampedOffset(NamedTuple):
    """A record's offset and timestamp, and the leader epoch of its batch."""

    offset: int
    timestamp: int
    leader_epoch: int


def finding_by_timestamp(log: Log, timestamp: int) -> Steps[TimestampedOffset | None]:
    """The first record whose timestamp is `timestamp` ms or later; None if there is none.

    First by offset, as in ListOffsets: timestamps need not increase with offsets.
    NOT_LEADER_OR_FOLLOWER while a truncation changes the log, and once it is deleted.
    """
    offset = log.start_offset
    while True:
        segments = _segments_from(log, offset)
        while segments and segments[0].largest_timestamp[0] < timestamp:
            del segments[0]
        if not segments:
            return None
        first, *others = segments
        try:
            found = yield from _in_segment(log, first, partial(_first_since, log, timestamp))
        except _ReplacedError:
            continue
        if found is not None and found.offset < log.start_offset:
            continue  # deleted meanwhile
        if found is not None or not others:
            return found
        offset = others[0].base_offset


def _first_since(log: Log, timestamp: int, search: _Search) -> Steps[TimestampedOffset | None]:
    return search.first_since(timestamp, log.start_offset)


def finding_newest(log: Log) -> Steps[TimestampedOffset | None]:
    """The first record with the largest timestamp of the log (KIP-734); None if it holds none."""
    while True:
        first, *others = _segments_from(log, log.start_offset)
        newest_ms = max((each.largest_timestamp[0] for each in others), default=NO_TIMESTAMP)
        if first.largest_timestamp[0] > newest_ms:
            look = partial(_newest_left, log, first.largest_timestamp)
            try:
                left_ms = yield from _in_segment(log, first, look)
            except _ReplacedError:
                continue
            newest_ms = max(newest_ms, left_ms)
        if newest_ms < 0:
            return None
        return (yield from finding_by_timestamp(log, newest_ms))


def _newest_left(log: Log, largest: tuple[int, int], search: _Search) -> Steps[int]:
    return search.newest_left(*largest, log.start_offset)


def _segments_from(log: Log, offset: int) -> list[Segment]:
    """The segments from the one that covers `offset` on."""
    if log.is_truncating or log.is_closed:
        what = "deleted" if log.is_closed else "being truncated"
        raise ApiError(Error.NOT_LEADER_OR_FOLLOWER, f"{log.partition} is {what}")
    return log.segments[log.segment_index(max(offset, log.start_offset)) :]


class _ReplacedError(Exception):
    """The segment is not the log's any more, or not what it was."""


def _in_segment(log: Log, segment: Segment, look: Callable[[_Search], Steps[T]]) -> Steps[T]:
    """What `look` finds in the segment. If its index is corrupt, that is rebuilt once."""
    generation, is_rebuilt = segment.generation, False
    while True:
        try:
            files = _CachedFiles(log.context.files)
            try:
                return (yield from look(_Search(files, segment)))
            finally:
                files.close()  # also those that were open when there was no descriptor for the next
        except (CorruptRecords, CorruptFile, FileNotFoundError) as error:
            is_same = segment.generation == generation and segment in log.segments
            if not is_same or log.is_truncating or log.is_closed:
                raise _ReplacedError from error
            if is_rebuilt or not isinstance(error, CorruptFile):
                raise
            logger.warning("%s: the indexes are rebuilt", error)
            log.rebuild_indexes(segment)
            is_rebuilt = True


class _NotCachedError(Exception):
    """What was to be read is not in the page cache. `read` reads it, by a thread."""

    def __init__(self, read: Callable[[], object]) -> None:
        self._read = read

    def read(self) -> None:
        self._read()


class _CachedFiles:
    """Opens files that read only from the page cache; of `Files` it has what a segment's look-ups
    need."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._opened: list[File] = []
        self._missed: set[tuple[str, int]] = set()

    def size(self, path: str) -> int:
        return _now_at(path, self._files.size)

    def exists(self, path: str) -> bool:
        return any(map(self._files.exists, (path, path.removesuffix(FileState.SWAP))))

    def open(self, path: str) -> File:
        file = _now_at(path, self._files.open_readonly)
        self._opened.append(file)
        return cast(File, _CachedFile(file, self._missed))

    def close(self) -> None:
        for file in self._opened:
            file.close()


def _now_at(path: str, call: Callable[[str], T]) -> T:
    """What it returns for the file, which a swap's thread may just have given its last name."""
    try:
        return call(path)
    except FileNotFoundError:
        return call(path.removesuffix(FileState.SWAP))


class _CachedFile:
    """Of `File` it has what look-ups need."""

    def __init__(self, file: File, missed: set[tuple[str, int]]) -> None:
        self.path = file.path
        self._file = file
        self._missed = missed

    def read(self, position: int, size: int) -> bytes:
        """As `File.read`, but `_NotCachedError` where that would block.

        Not twice at one place, as what was read may be evicted at once.
        """
        content = self._file.read_cached(position, size)
        if content is not None:
            return content
        if (self.path, position) in self._missed:
            return self._file.read(position, size)
        self._missed.add((self.path, position))
        raise _NotCachedError(partial(self._file.read, position, max(size, _READ_BYTES)))


class _Search:
    """Looks up in one segment, up to where it ends now. Owner: one look-up."""

    def __init__(self, files: _CachedFiles, segment: Segment) -> None:
        self._segment = own = segment.reopened(cast(Files, files))
        assert own.file  # opened now, since it may be renamed later
        for index in (own.offset_index, own.time_index):
            if len(index):
                assert index.file

    def first_since(self, timestamp: int, start_offset: int) -> Steps[TimestampedOffset | None]:
        """The first record from `start_offset` on that has this timestamp or a later one."""

        def first_of(header: BatchHeader, body: Buffer) -> TimestampedOffset | None:
            for offset, at in zip(*body_numbers(body, header), strict=True):
                if at >= timestamp and offset >= start_offset:
                    return TimestampedOffset(offset, at, header.partition_leader_epoch)
            return None

        def first_in(piece: Piece) -> Steps[TimestampedOffset | None]:
            _, span, _ = piece
            if span.newest_ms >= timestamp and span.last_offset >= start_offset:
                for position, header in _headers(piece):
                    if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                        found = yield from self._look_into(position, header, first_of)
                        if found is not None:
                            return found
                yield None
            return None

        offset = yield from _cached(partial(self._segment.offset_before, timestamp, start_offset))
        position = yield from _cached(partial(self._position_near, offset))
        return (yield from self._walk(position, first_in))

    def newest_left(self, newest_ms: int, last_offset: int, start_offset: int) -> Steps[int]:
        """The largest timestamp from `start_offset` on, ms; records before that were deleted.

        `newest_ms` is that of the segment, in the batch that ends with `last_offset`. Others are
        looked at only if it is among the deleted ones.
        """

        left_ms = NO_TIMESTAMP

        def newest_of(header: BatchHeader, body: Buffer) -> int:
            numbers = zip(*body_numbers(body, header), strict=True)
            left = (at for offset, at in numbers if offset >= start_offset)
            return max(left, default=NO_TIMESTAMP)  # compaction may have emptied a batch

        def note_newest(piece: Piece) -> Steps[None]:
            nonlocal left_ms
            _, span, _ = piece
            if span.base_offset >= start_offset:
                left_ms = max(left_ms, span.newest_ms)
                return
            for position, header in _headers(piece):
                if header.base_offset >= start_offset:
                    left_ms = max(left_ms, header.max_timestamp)
                elif header.last_offset >= start_offset:
                    own_ms = yield from self._look_into(position, header, newest_of)
                    left_ms = max(left_ms, own_ms)
            yield None

        found = yield from _cached(partial(self._segment.find, last_offset))
        if found is not None and found[1].base_offset >= start_offset:
            return newest_ms
        position = yield from _cached(partial(self._position_near, start_offset))
        yield from self._walk(position, note_newest)
        return left_ms

    def _walk(self, position: int, look: Callable[[Piece], Steps[T | None]]) -> Steps[T | None]:
        """What `look` finds in the batches from `position` on, the first that is not None."""
        pieces, count = self._segment.walk_spans(position), 0
        while True:
            try:
                piece = next(pieces, None)
            except _NotCachedError as missing:
                yield missing.read
                pieces = self._segment.walk_spans(position)
                continue
            if piece is None:
                return None
            found = yield from look(piece)
            if found is not None:
                return found
            position, count = piece[0] + piece[1].size, count + 1
            if not count % _STEP_SPANS:
                yield None

    def _look_into(
        self, position: int, header: BatchHeader, look: Callable[[BatchHeader, Buffer], T]
    ) -> Steps[T]:
        """What `look` finds in the records of a batch; a thread looks if there are many."""
        batch = yield from _cached(partial(self._segment.read_batch, position, header.size))
        body = read_brief_body(batch.data, 0, header)
        if body is not None and len(body) <= BRIEF_BODY_BYTES:
            return look(header, body)
        return (yield from in_thread(lambda: look(header, read_body(batch.data, 0, header))))

    def _position_near(self, offset: int) -> int:
        """The position of the batch that holds `offset`, or of one a little before."""
        return next((at for at, _ in self._segment.walk_near(offset)), self._segment.size)


def _headers(piece: Piece) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of each batch of a piece."""
    position, span, content = piece
    at = 0
    while at < span.size:
        header = read_header(content, at)
        yield position + at, header
        at += header.size


def _cached(call: Callable[[], T]) -> Steps[T]:
    """What `call` returns, once all that it reads is in the page cache."""
    while True:
        try:
            return call()
        except _NotCachedError as missing:
            yield missing.read
