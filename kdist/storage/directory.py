"""A broker's one log directory: its identity, its logs, and the checkpoints they share.

Start, in this order: lock, identity (`meta.properties`); then, by `open` or in steps, note the
host's boot, remove the clean-shutdown marker, load the logs. Stop: flush all logs, save the
checkpoints, write the marker, unlock. Between them `Schedule` has the periodic work: flushes,
checkpoints, retention, expiry of producers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Self

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, CorruptFile, DiskFull, Error, OutOfDescriptors, UserError
from kdist.model import TopicPartition
from kdist.runtime.steps import Steps, run_steps
from kdist.runtime.tasks import Done, Timer
from kdist.storage import names
from kdist.storage.append import DiskSpace
from kdist.storage.background import Background, DirectoryContext, FileCreator, OffsetSaver
from kdist.storage.checkpoints import encode_offsets, load_offsets
from kdist.storage.flushing import Flusher, flush_now, flushed_partitions
from kdist.storage.loading import SavedOffsets, load_log, new_log
from kdist.storage.log import Log, LogContext
from kdist.storage.meta import (
    BootNote,
    Identity,
    boot_noted,
    claim_directory,
    has_topic_id,
    note_adopted,
    note_boot,
    save_clean_shutdown,
)
from kdist.storage.names import DirectoryState, some_of
from kdist.storage.trimming import Trimmer

logger = logging.getLogger(__name__)

_LOGS_AT_A_TIME = 500
_DESCRIPTORS_CHECK_MS = 1_000
_TELL_EVERY_NS = 60_000_000_000
_PRODUCERS_PER_TICK = 10_000  # 3 ms


class LogDirectory:
    """Owner: the event loop. The lock keeps other processes out."""

    def __init__(self, path: str, identity: Identity, context: DirectoryContext) -> None:
        """Lock and claim it; `open` comes next. `UserError` if in use, or not this broker's."""
        self.path = path
        self._boot_path = f"{path}/{names.BOOT}"
        self.context = context
        self.files = files = context.files
        self.logs: dict[TopicPartition, Log] = {}
        self.is_clean = False  # whether the last stop was clean, by its marker
        self.content_id: str | None = None  # see `note_boot`; None until opened
        self._note: BootNote
        self._unnoted: BootNote | None = None  # there was no room: the next save writes it
        self.flushed: dict[str, set[int]] = {}  # see `flushed_partitions`
        self.found = 0  # how many logs there are to open
        self._is_open = False
        self._has_cleaner_offsets = False  # most brokers have no compacted topic, and no such file
        # The partitions that checkpoints on the disk may contain, or whose removal may not be
        # durable; and those that are so by the last save.
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
        self.trimmer = Trimmer(context, self.logs, self.saver, self.flusher)
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

    def open(self, vetted: str | None = None) -> Self:
        """Open all logs before returning. `UserError` if one cannot be. `vetted`: see `opening`."""
        try:
            run_steps(self.opening(vetted))
        except BaseException:
            self.close()
            raise
        return self

    def opening(self, vetted: str | None = None) -> Steps[None]:
        """Open all logs, in steps. The directory must not be used before the last step.

        If abandoned half-way, it is closed without a marker, so the next start scans the logs.
        `vetted`: the content id by which a controller has judged the replicas last.
        """
        self._note = note = self._note_boot(vetted)
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
        self.flushed = flushed_partitions(self.logs, note)
        yield self._flush_changed
        self._is_open = True

    def _note_boot(self, vetted: str | None) -> BootNote:
        """Note the boot, and remove the marker of a clean stop, which `close` writes again."""
        context, marker = self.context, f"{self.path}/{names.CLEAN_SHUTDOWN}"
        self.is_clean = is_clean = self.files.exists(marker)
        given = (self.files, self._boot_path, context.boot_id, context.rng)
        note = note_boot(*given, was_clean=is_clean, vetted=vetted)
        self.content_id = note.content_id
        self._unnoted = None if boot_noted(self.files, self._boot_path) == note else note
        self.log_context = self.log_context._replace(content_id=note.content_id, vetted=note.vetted)
        if is_clean:
            self.files.remove(marker)
            self.files.sync_directory(self.path)
        return note

    def _is_of_known_topic(self, log: Log, saved: SavedOffsets) -> bool:
        """Whether it has its topic's id, or was flushed by a broker that does not write them.

        The first flush makes the id durable, so only a power loss before that takes it; what there
        is of the log then could be another topic's of its name.
        """
        path = f"{log.directory}/{names.PARTITION_METADATA}"
        return self.is_clean or saved.recovery_point > 0 or has_topic_id(self.files, path)

    def _flush_changed(self) -> None:
        """Flush what opening the logs has changed, and note that they are. Blocks."""
        logs = self.logs.values()
        # Lest a flush mark come back that was removed before: by Apache Kafka, or by a process that
        # was killed, or stopped, before it could sync that.
        self.files.sync_filesystem(self.path)
        try:
            self._flush([log for log in logs if log.is_changed or log.has_mark_due])
            self._save_checkpoints()
            note_adopted(self.files, self._boot_path, self._note)
        except DiskFull as error:
            logger.warning("%s: the broker starts, and flushes once there is room", error)

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
                self._named.add(parsed.partition)  # its new name may not be durable
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
        """Call `done` once the partition's deleted log is gone durably, also from checkpoints."""
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

        After `DiskFull` the log still exists, or its removal is not durable: see `forget`. Waits
        for a flush of it fail with UNKNOWN_TOPIC_OR_PARTITION.
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
        if (error := self.context.refusal(partial(remove, log))) is not None:
            done(error)
            return
        del self.logs[partition]
        self.fail_flush_waiters(log)
        log.close()
        if not log.has_files:
            done(None)
            return
        for each in (self._named, self._being_named):  # until a save from here on has succeeded
            each.add(partition)
        self.saver.request(done)  # which syncs this directory too, before `done`

    def _retire(self, log: Log, state: DirectoryState) -> None:
        unique = uuid.UUID(int=self.context.rng.getrandbits(128))
        path = f"{self.path}/{names.retired_directory_name(log.partition, state, unique)}"
        self.files.rename(log.directory, path)
        if state is DirectoryState.DELETED:
            self.background.remove_tree(path, log.settings.file_delete_delay_ms)
        else:
            logger.warning("%s is kept as a stray, %s", log.partition, path)

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
        # `trimming.drop`).
        starts = {partition: log.start_offset for partition, log in logs if log.start_offset}
        dirty = {
            partition: log.first_dirty_offset
            for partition, log in logs
            if log.first_dirty_offset is not None
        }
        if dirty or self._has_cleaner_offsets:
            contents[f"{self.path}/{names.CLEANER_OFFSETS}"] = encode_offsets(dirty)
            self._has_cleaner_offsets = True
        if self._unnoted is not None:
            contents[self._boot_path] = self._unnoted.encode()
        return contents | {
            f"{self.path}/{names.RECOVERY_POINTS}": encode_offsets(
                {partition: log.recovery_point for partition, log in logs}
            ),
            f"{self.path}/{names.LOG_START_OFFSETS}": encode_offsets(starts),
        }

    def _note_saved(self) -> None:
        self._named, self._unnoted = self._being_named, None

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
            self._flush(
                [log for log in self.logs.values() if log.is_changed], prepare=Log.prepare_stop
            )
            self._save_checkpoints()
            note_adopted(self.files, self._boot_path, self._note)
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


class Schedule:
    """The periodic work of a log directory. Owner: the broker.

    Nothing happens before `start`, and nothing begins after `stop`. It also closes idle files when
    others could not be opened for lack of descriptors.

    `high_watermark_of`: up to where a log's records are committed; retention keeps all others.
    """

    def __init__(self, directory: LogDirectory, high_watermark_of: Callable[[Log], int]) -> None:
        self._directory = directory
        self._high_watermark_of = high_watermark_of
        self._timers: dict[str, Timer] = {}
        self._silent_until_ns = 0

    def start(self) -> None:
        """Start; each kind of work is first done one interval from now."""
        settings = self._directory.context.settings
        self._every(_DESCRIPTORS_CHECK_MS, self.maybe_give_back)
        self._every(settings.flush_scheduler_interval_ms, self.flush_due)
        self._every(settings.flush_offset_checkpoint_interval_ms, self.save_offsets)
        self._every(settings.high_watermark_checkpoint_interval_ms, self.save_high_watermarks)
        self._every(settings.retention_check_interval_ms, self.retain)
        self._every(settings.producer_id_expiration_check_interval_ms, self.expire_producers)

    def stop(self) -> None:
        """Cancel all future work. What is in progress ends by itself."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._directory.background.stop()

    def _every(self, interval_ms: int, work: Callable[[], None]) -> None:
        def run() -> None:
            self._every(interval_ms, work)
            work()

        tasks = self._directory.context.tasks
        self._timers[work.__name__] = tasks.call_later(interval_ms, run)

    def flush_due(self) -> None:
        """Flush the logs whose oldest unflushed record is `flush.ms` old, or whose mark is due.

        Also if its time is in the future: the clock was set back, so its age is unknown.
        """
        directory = self._directory
        now_ms = directory.context.clock.now_ms()
        for log in list(directory.log_context.unflushed):
            since_ms = log.unflushed_since_ms
            is_old = since_ms is not None and not 0 <= now_ms - since_ms < log.settings.flush_ms
            if is_old or log.has_mark_due:
                directory.flusher.request(log)

    def save_offsets(self) -> None:
        """Write the checkpoints, so that a start after a crash scans less."""
        self._directory.saver.request()

    def save_high_watermarks(self) -> None:
        """Write their checkpoint, from which they go on after a crash."""
        self._directory.saver.request_high_watermarks()

    def retain(self) -> None:
        """Delete segments past retention, and close files that only past readers used."""
        try:
            self._directory.trimmer.retain(self._high_watermark_of)
        except OutOfDescriptors as error:
            logger.warning("%s: retention tries again later", error)
        self._give_back()

    def maybe_give_back(self) -> None:
        """Close the files that nobody is using, if others could not be opened."""
        files = self._directory.files
        if files.lacks_descriptors:
            files.lacks_descriptors = False
            self._warn_of_lack()
            self._give_back()

    def _warn_of_lack(self) -> None:
        """Log the lack of descriptors, at most once a minute."""
        now_ns = self._directory.context.clock.monotonic_ns()
        if now_ns >= self._silent_until_ns:
            self._silent_until_ns = now_ns + _TELL_EVERY_NS
            logger.warning("too many open files: requests were refused, and idle files are closed")

    def _give_back(self) -> None:
        for log in self._directory.logs.values():
            log.close_idle()

    def expire_producers(self) -> None:
        """Forget producers idle for `producer.id.expiration.ms`, a few milliseconds at a time."""
        self._go_on(self._expiring())

    def _go_on(self, work: Iterator[None]) -> None:
        """Go on to the next `yield`, and from there in another tick of the loop."""
        for _ in work:
            self._directory.context.tasks.call_soon(partial(self._go_on, work))
            return

    def _expiring(self) -> Iterator[None]:
        context, left = self._directory.context, _PRODUCERS_PER_TICK
        now_ms, expiration_ms = context.clock.now_ms(), context.settings.producer_id_expiration_ms
        for log in list(self._directory.logs.values()):
            ids = iter(log.producers.producers)
            while some := list(islice(ids, _PRODUCERS_PER_TICK)):
                log.producers.expire(now_ms, expiration_ms, some)
                left -= len(some)
                if left <= 0:
                    yield
                    left = _PRODUCERS_PER_TICK
