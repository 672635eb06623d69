"""A broker's one log directory: its identity, its logs, and the checkpoints they share.

Start, in this order: lock, identity (`meta.properties`); then, by `open` or in steps, note the
host's boot, remove the clean-shutdown marker, load the logs. Stop: flush all logs, save the
checkpoints, write the marker, unlock. Periodic work is in `schedule.py`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, DiskFailed, DiskFull, Error, KdistError, UserError
from kdist.model import TopicPartition
from kdist.storage import names
from kdist.storage.background import Background
from kdist.storage.checkpoints import encode_offsets, load_offsets
from kdist.storage.context import DirectoryContext, Done, Identity
from kdist.storage.deletion import drop, release
from kdist.storage.faults import CorruptFile
from kdist.storage.file_creation import FileCreator
from kdist.storage.flushing import Flusher, flush_now
from kdist.storage.loading import load_log, new_log
from kdist.storage.log import Log, LogContext
from kdist.storage.meta import (
    BootNote,
    claim_directory,
    load_partition_metadata,
    note_adopted,
    note_boot,
    save_clean_shutdown,
)
from kdist.storage.names import DirectoryState, some_of
from kdist.storage.offset_saver import OffsetSaver
from kdist.storage.recovery import SavedOffsets
from kdist.storage.segment import Segment
from kdist.storage.space import DiskSpace
from kdist.storage.steps import Steps, run_steps
from kdist.storage.truncation import Truncation

logger = logging.getLogger(__name__)

_LOGS_AT_A_TIME = 500


class LogDirectory:
    """Owner: the event loop. The lock keeps other processes out."""

    def __init__(self, path: str, identity: Identity, context: DirectoryContext) -> None:
        """Lock and claim it; `open` comes next. `UserError` if in use, or not this broker's."""
        self.path = path
        self.context = context
        self.files = files = context.files
        self.logs: dict[TopicPartition, Log] = {}
        self.is_clean = False  # whether the last stop was clean, by its marker
        self.content_id: str | None = None  # see `note_boot`; None until opened
        self.found = 0  # how many logs there are to open
        # Called with each log whose start offset has moved, or whose end was truncated.
        self.on_bounds_moved: list[Callable[[Log], None]] = []
        self._is_open = False
        self._has_cleaner_offsets = False  # most brokers have no compacted topic, and no such file
        # The partitions that the checkpoints on the disk may contain, and those in the last save.
        self._named: set[TopicPartition] = set()
        self._being_named: set[TopicPartition] = set()
        self.saved_high_watermarks: dict[TopicPartition, int] = {}  # by the last life, once open
        # What to save; the logs know nothing of high watermarks. Set by who has the partitions.
        self.high_watermarks: Callable[[], Mapping[TopicPartition, int]]
        self.high_watermarks = lambda: self.saved_high_watermarks
        try:
            self._lock = files.lock(f"{path}/{names.LOCK}")
        except BlockingIOError:
            raise UserError(f"{path} is in use by another process") from None
        except FileNotFoundError:
            raise UserError(f"{path} is not there: is its disk mounted?") from None
        try:
            self.meta = claim_directory(files, path, *identity, context.rng)
        except BaseException:
            self._lock.release()
            raise
        self.flusher = Flusher(context, path)
        self.saver = OffsetSaver(context, self._encode_checkpoints, self._note_saved)
        self.background = Background(context)
        self._file_creator = FileCreator(context)
        self.log_context = LogContext(
            files=files,
            settings=context.settings,
            metrics=context.metrics,
            rng=context.rng,
            space=DiskSpace(files, path, context.settings.reserved_bytes),
            unflushed={},
            want_flush=self.flusher.request,
            start_writeback=self.background.start_writeback,
            discard=self.background.discard,
            create_files=self._file_creator.create,
            admit_gaps=self._admit_gaps,
        )

    def open(self) -> Self:
        """Open all logs before returning. `UserError` if one cannot be."""
        try:
            run_steps(self.opening())
        except BaseException:
            self.close()
            raise
        return self

    def opening(self) -> Steps[None]:
        """Open all logs, in steps. The directory must not be used before the last step.

        If abandoned half-way, it is closed without a marker, so the next start scans the logs.
        """
        context, boot = self.context, f"{self.path}/{names.BOOT}"
        self.is_clean = self.files.exists(f"{self.path}/{names.CLEAN_SHUTDOWN}")
        note = note_boot(self.files, boot, context.boot_id, context.rng, was_clean=self.is_clean)
        self.content_id = note.content_id
        if self.is_clean:
            self._remove_clean_marker()
        recovery_points = self._load_checkpoint(names.RECOVERY_POINTS)
        start_offsets = self._load_checkpoint(names.LOG_START_OFFSETS)
        compacted = self._load_checkpoint(names.CLEANER_OFFSETS)
        self._has_cleaner_offsets = bool(compacted)
        self.saved_high_watermarks.update(self._load_checkpoint(names.HIGH_WATERMARKS))
        self._named = {
            *recovery_points,
            *start_offsets,
            *compacted,
            *self.saved_high_watermarks,
        }
        found = self._find_partitions()
        self.found = len(found)
        for partition in found:
            yield None
            saved = SavedOffsets(
                recovery_point=recovery_points.get(partition, 0),
                start_offset=start_offsets.get(partition, 0),
                first_dirty_offset=compacted.get(partition),
            )
            try:
                log = yield from load_log(
                    self.log_context,
                    partition,
                    self._directory_of(partition),
                    self.context.settings_of(partition.topic),
                    saved,
                    is_clean=self.is_clean,
                    now_ms=self.context.clock.now_ms(),
                )
            except DiskFull as error:
                entries = self.files.list(self._directory_of(partition))
                if any(names.log_base_offset(name) is not None for name in entries):
                    raise
                logger.warning("%s: %s has no record; the next start opens it", error, partition)
                continue
            if not note.is_adopted or self._is_of_known_topic(log, saved):
                self.logs[partition] = log
            else:
                log.close()
                self._retire(
                    log, DirectoryState.STRAY if log.end_offset else DirectoryState.DELETED
                )
        yield lambda: self._flush_changed(boot, note)
        self._is_open = True

    def _is_of_known_topic(self, log: Log, saved: SavedOffsets) -> bool:
        """Whether it has its topic's id, or was flushed by a broker that does not write them.

        The first flush makes the id durable, so only a power loss before that takes it; what there
        is of the log then could be another topic's of its name.
        """
        if self.is_clean or saved.recovery_point:
            return True
        try:
            path = f"{log.directory}/{names.PARTITION_METADATA}"
            return load_partition_metadata(self.files, path) is not None
        except CorruptFile:
            return False

    def _flush_changed(self, boot: str, note: BootNote) -> None:
        """Flush what opening the logs has changed, and note in `boot` that they are. Blocks."""
        try:
            self._flush([log for log in self.logs.values() if log.is_changed])
            self._save_checkpoints()
            note_adopted(self.files, boot, note)
        except DiskFull as error:
            logger.warning("%s: the broker starts, and flushes once there is room", error)

    def _remove_clean_marker(self) -> None:
        """`close` writes it again."""
        self.files.remove(f"{self.path}/{names.CLEAN_SHUTDOWN}")
        self.files.sync_directory(self.path)

    def _load_checkpoint(self, name: str) -> Mapping[TopicPartition, int]:
        try:
            return load_offsets(self.files, f"{self.path}/{name}")
        except CorruptFile as fault:
            # Without recovery points, all is scanned; without log start offsets, deleted records
            # become readable again; without high watermarks, they rise again from the log's start.
            logger.warning("%s: the checkpoint is ignored", fault)
            return {}

    def _find_partitions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        others: list[str] = []
        for name in self.files.list(self.path):
            path, parsed = f"{self.path}/{name}", names.parse_directory_name(name)
            is_directory = self.files.is_directory(path)
            if parsed and self.files.is_link(path):
                raise UserError(
                    f"{path} is a symbolic link: flushes reach this filesystem only, so put the"
                    " partition's own directory there"
                )
            if parsed and is_directory and parsed.state is DirectoryState.LIVE:
                found.append(parsed.partition)
            elif parsed and is_directory and parsed.state is DirectoryState.DELETED:
                self.background.remove_tree(path)
            elif parsed or (is_directory and name != names.LOST_AND_FOUND):
                others.append(name)
        if others:
            logger.warning(
                "%d entries of %s are no partitions to open, and are left alone: %s",
                *(len(others), self.path, some_of(others)),
            )
        return found

    def _directory_of(self, partition: TopicPartition) -> str:
        return f"{self.path}/{names.directory_name(partition)}"

    # Logs

    def create(
        self, partition: TopicPartition, topic_id: uuid.UUID, settings: TopicSettings
    ) -> Log:
        """A new, empty log, whose files are made a little later, or before its first append.

        Like its first records, it survives a power loss only once flushed. KAFKA_STORAGE_ERROR if
        something else is at its path, or while a checkpoint still contains a deleted log of this
        name, whose offsets would be taken for the new log's: wait for `delete` or `forget`.
        """
        assert partition not in self.logs
        if partition in self._named:
            reason = f"a checkpoint still tells of an earlier {partition}: try again"
            raise ApiError(Error.KAFKA_STORAGE_ERROR, reason)
        directory, now_ms = self._directory_of(partition), self.context.clock.now_ms()
        if self.files.exists(directory):
            raise ApiError(Error.KAFKA_STORAGE_ERROR, f"{directory} is there, and is no log")
        log = self.logs[partition] = new_log(
            self.log_context, partition, directory, settings, now_ms
        )
        self._file_creator.add(log, topic_id)
        return log

    def forget(self, partition: TopicPartition, done: Done) -> None:
        """Call `done` once no checkpoint contains the partition's deleted log any more."""
        if partition in self._named and partition not in self.logs:
            self.saver.request(done)
        else:
            done(None)

    def _admit_gaps(self, log: Log) -> None:
        log.begin_compaction()

        def saved(error: BaseException | None) -> None:
            if error is None:
                log.admit_gaps()

        self.saver.request(saved)

    def fail_flush_waiters(self, log: Log) -> None:
        """Fail all waits for a flush of a log about to be deleted: UNKNOWN_TOPIC_OR_PARTITION."""
        self.flusher.cut(log, -1, ApiError(Error.UNKNOWN_TOPIC_OR_PARTITION))

    def delete(self, partition: TopicPartition, done: Done) -> None:
        """Delete a log, then call `done`; its files are removed in the background.

        After `DiskFull` the log still exists, or a checkpoint still contains it. Waits for a flush
        of it fail with UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._take_out(partition, DirectoryState.DELETED, done)

    def mark_stray(self, partition: TopicPartition, done: Done) -> None:
        """As `delete`, but keep the files as a stray: nobody asked to delete this log."""
        self._take_out(partition, DirectoryState.STRAY, done)

    def _take_out(self, partition: TopicPartition, state: DirectoryState, done: Done) -> None:
        log = self.logs[partition]
        if log.is_busy:
            self.flusher.request(log, lambda _: self._take_out(partition, state, done))
            return
        remove = partial(self._retire, state=state) if log.has_files else self._file_creator.forget
        if (error := self._refusal(partial(remove, log))) is not None:
            done(error)
            return
        del self.logs[partition]
        self.fail_flush_waiters(log)
        log.close()
        if not log.has_files:
            done(None)
            return
        self.saver.request(done)  # which syncs this directory too, before `done`

    def _retire(self, log: Log, state: DirectoryState) -> None:
        unique = uuid.UUID(int=self.context.rng.getrandbits(128))
        path = f"{self.path}/{names.retired_directory_name(log.partition, state, unique)}"
        self.files.rename(log.directory, path)
        if state is DirectoryState.DELETED:
            self.background.remove_tree(path, log.settings.file_delete_delay_ms)
        else:
            logger.warning("%s is kept as a stray, %s", log.partition, path)

    def truncate(
        self,
        log: Log,
        offset: int,
        done: Done,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        lowers_start: bool = False,
    ) -> None:
        """Truncate the log to `offset`, durably, then call `done`.

        It begins once a flush and the appends under way have ended, and is done in a thread. If it
        is not wanted any more, up to the moment before the first file is touched, `done` gets
        NOT_LEADER_OR_FOLLOWER: this broker may lead by now, and have appended before. If it leads
        from a later moment on, its epoch begins where the log then ends.
        Meanwhile appends are refused with NOT_LEADER_OR_FOLLOWER, and reads of the segments to be
        cut find nothing. Waits for a flush of what is cut off fail with NOT_LEADER_OR_FOLLOWER.
        After an `ApiError`, as `DiskFull`, the log is as it was.
        """
        if log.is_busy:
            again = partial(self.truncate, log, offset, done, is_wanted, lowers_start=lowers_start)
            self.flusher.request(log, lambda _: again())
            return
        if not is_wanted():
            done(_unwanted(log))
            return
        if log.start_offset < offset < log.compacted_for_offset:
            # What compaction removed below may have had its later record in what is cut off.
            logger.warning("%s is truncated to %d, where it is compacted: all of it goes, and is"
                " fetched again", log.partition, offset)  # fmt: skip
            offset = log.start_offset
        if not log.is_appending and offset >= log.end_offset:
            log.truncate_epochs()
            done(None)
            return
        if log.is_swapping:  # which waits for room to rename files, as this would
            done(DiskFull(log.directory))
            return
        begin = partial(self._truncate, log, offset, done, is_wanted, lowers_start)
        log.begin_truncation(lambda: self.context.tasks.call_soon(begin))

    def _truncate(
        self,
        log: Log,
        offset: int,
        done: Done,
        is_wanted: Callable[[], bool],
        lowers_start: bool,
    ) -> None:
        """Truncate, now that no append is under way."""
        if not is_wanted():
            self._end_truncation(log, done, _unwanted(log))
            return
        if offset >= log.end_offset:
            log.truncate_epochs()
            self._end_truncation(log, done, None)
            return
        truncation = Truncation(log, offset, self._now_ms(), lowers_start=lowers_start)

        def saved(error: BaseException | None) -> None:
            if error is None and not is_wanted():
                error = _unwanted(log)
            if error is None:
                self.context.tasks.run_blocking(truncation.run, ended)
            else:
                ended(error)

        def ended(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, ApiError):
                # After a failed sync, a flush would confirm lost data, so the log stays busy.
                self.context.on_failure(error)
                done(error)
                return
            if error is None:
                truncation.finish()
            else:
                truncation.give_up()
            self._end_truncation(log, done, error)

        self.saver.request(saved)

    def _end_truncation(self, log: Log, done: Done, error: ApiError | None) -> None:
        log.end_truncation()
        self._bounds_moved(log)
        # Even if truncation failed: a flush requested meanwhile has been waiting.
        self.flusher.request(log, done if error is None else None)
        self.flusher.cut(log, log.end_offset, ApiError(Error.NOT_LEADER_OR_FOLLOWER))
        if error is not None:
            done(error)

    def begin_anew(
        self, log: Log, offset: int, done: Done, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Drop all records, and have the log begin at `offset`, outside of it; then call `done`.

        For a replica of which its leader has deleted all that follows, or has nothing but what is
        before it. After a power loss the log has the first of its records, or none. `is_wanted` and
        errors are as for `truncate`.
        """

        def emptied(error: BaseException | None) -> None:
            if error is None and (log.is_busy or not is_wanted()):
                self.begin_anew(log, offset, done, is_wanted)  # or refuse to
                return
            if error is None and log.start_offset != offset:
                error = self._refusal(partial(log.begin_anew, offset, self._now_ms()))
            if error is not None:
                done(error)
                return
            self._bounds_moved(log)
            self.saver.request(saved)  # before it takes records below the start that was saved

        def saved(error: BaseException | None) -> None:
            if error is None:
                self.flusher.request(log, done)
            else:
                done(error)

        is_below = offset < log.start_offset
        end = offset if is_below else log.start_offset
        self.truncate(log, end, emptied, is_wanted, lowers_start=is_below)

    def _now_ms(self) -> int:
        return self.context.clock.now_ms()

    def delete_records(self, log: Log, offset: int, done: Done) -> None:
        """Advance the log start offset to `offset`; call `done` once that is durable.

        Then the segments that lie wholly below it are deleted, and no other: what is past retention
        waits for its check. NOT_LEADER_OR_FOLLOWER while the log is being truncated.
        """
        log.delete_records(offset)
        start_offset = log.start_offset  # by then another call may have moved it, yet to be saved
        self._bounds_moved(log)

        def saved(error: BaseException | None) -> None:
            if error is None:
                log.epochs.truncate_from_start(start_offset)
                below = log.segments[: log.segment_index(start_offset)]
                if below:
                    logger.info("%r: %d segments lie below its start", log, len(below))
                    self._drop(log, below, is_start_saved=True)
            done(error)

        self.saver.request(saved)

    def retain(self, high_watermark_of: Callable[[Log], int]) -> int:
        """Delete the segments past retention; return how many."""
        now_ms = self.context.clock.now_ms()
        gone = [
            (log, release(log, high_watermark_of(log), now_ms))
            for log in self.logs.values()
            if not (log.is_truncating or log.is_swapping)
        ]
        gone = [(log, segments) for log, segments in gone if segments]
        for log, _ in gone:
            self._bounds_moved(log)

        def drop_all(error: BaseException | None) -> None:
            for log, segments in gone:
                left = [segment for segment in segments if segment in log.segments]
                self._drop(log, left, is_start_saved=error is None)

        if gone:
            self.saver.request(drop_all)
        return sum(len(segments) for _, segments in gone)

    def _drop(self, log: Log, segments: Sequence[Segment], *, is_start_saved: bool) -> None:
        """Remove segments below the start offset, unless the log was deleted in the meantime.

        While it is being changed they wait for the next check of retention.
        """
        is_there = self.logs.get(log.partition) is log
        if is_there and not (log.is_truncating or log.is_swapping):
            self._refusal(partial(drop, log, segments, is_start_saved=is_start_saved))

    def _bounds_moved(self, log: Log) -> None:
        for hear in self.on_bounds_moved:
            hear(log)

    def _refusal(self, work: Callable[[], None]) -> KdistError | None:
        """Do disk work inside a callback, and return its error for the requester.

        `DiskFailed` is also reported to `on_failure`, since no caller would catch it.
        """
        try:
            work()
        except ApiError as error:
            return error
        except DiskFailed as error:
            self.context.on_failure(error)
            return error
        return None

    # Checkpoints and the end

    def _encode_checkpoints(self, is_whole: bool = True) -> dict[str, bytes]:
        high_watermarks = {
            partition: min(offset, self.logs[partition].truncating_from)
            for partition, offset in self.high_watermarks().items()
            if partition in self.logs and self.logs[partition].has_files
        }
        contents = {f"{self.path}/{names.HIGH_WATERMARKS}": encode_offsets(high_watermarks)}
        if not is_whole:
            self._named |= high_watermarks.keys()
            return contents
        logs = [(partition, log) for partition, log in self.logs.items() if log.has_files]
        self._being_named = {partition for partition, _ in logs}
        self._named |= self._being_named  # a save that fails half-way may have written one of them
        # Also if equal to the first segment's base offset: a dropped segment may come back (see
        # `drop`).
        starts = {partition: log.start_offset for partition, log in logs if log.start_offset}
        dirty = {
            partition: log.first_dirty_offset
            for partition, log in logs
            if log.first_dirty_offset is not None
        }
        if dirty or self._has_cleaner_offsets:
            contents[f"{self.path}/{names.CLEANER_OFFSETS}"] = encode_offsets(dirty)
            self._has_cleaner_offsets = True
        return contents | {
            f"{self.path}/{names.RECOVERY_POINTS}": encode_offsets(
                {partition: log.recovery_point for partition, log in logs}
            ),
            f"{self.path}/{names.LOG_START_OFFSETS}": encode_offsets(starts),
        }

    def _note_saved(self) -> None:
        self._named = self._being_named

    def _save_checkpoints(self) -> None:
        for path, content in self._encode_checkpoints().items():
            self.files.replace(path, content)
        self._note_saved()

    def close(self, broker_epoch: int = -1) -> None:
        """Flush everything, mark the stop as clean, unlock. No other work may be running. Blocks.

        If opening was abandoned half-way, only unlock.
        """
        if self._is_open:
            self._save_all(broker_epoch)
        for log in self.logs.values():
            log.close()
        self._lock.release()

    def _save_all(self, broker_epoch: int) -> None:
        try:
            self._flush([log for log in self.logs.values() if log.is_changed], prepare=Log.complete)
            self._save_checkpoints()
            marker = f"{self.path}/{names.CLEAN_SHUTDOWN}"
            save_clean_shutdown(self.files, marker, broker_epoch)
        except DiskFull as error:
            logger.warning("%s: the stop is not clean, so the next start scans the logs", error)

    def _flush(self, logs: Sequence[Log], prepare: Callable[[Log], None] | None = None) -> None:
        """Flush before returning, some logs at a time: each takes up to three descriptors."""
        for start in range(0, len(logs), _LOGS_AT_A_TIME):
            some = logs[start : start + _LOGS_AT_A_TIME]
            if prepare is not None:
                for log in some:
                    prepare(log)
            flush_now(self.files, self.path, some)
            for log in some:
                log.close_idle()


def _unwanted(log: Log) -> ApiError:
    return ApiError(Error.NOT_LEADER_OR_FOLLOWER, f"{log.partition} is not to be truncated")
