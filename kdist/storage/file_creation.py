"""Creating the files of new logs: before the first append, or in the background a little later.

A directory with four files took ext4 0.3 to 1.4 ms when hundreds were created, so creating hundreds
of partitions does not wait for that. A log without files has nothing to lose: after a power loss it
is created again when the controller next sends its state. If it is deleted before, it was never on
the disk. Nothing is synced: a start sets aside what a power loss has left without the topic's id.
"""

from __future__ import annotations

import logging
import uuid
from typing import NamedTuple

from kdist.errors import DiskFailed, DiskFull
from kdist.storage.context import DirectoryContext
from kdist.storage.log import Log
from kdist.storage.meta import encode_partition_metadata
from kdist.storage.names import PARTITION_METADATA

logger = logging.getLogger(__name__)

_DELAY_MS = 1_000  # after the answers are sent, and perhaps after the topic is deleted again
_PAUSE_SHARE = 3  # pause between two for this multiple of the time one took: the loop is busy
_NS_PER_MS = 1_000_000


class _Pending(NamedTuple):
    metadata: bytes  # content of partition.metadata
    due_ns: int  # when to create its files in the background


class FileCreator:
    """Owner: the log directory. `on_failure` is called if the disk fails in background work."""

    def __init__(self, context: DirectoryContext) -> None:
        self._files = context.files
        self._tasks = context.tasks
        self._clock = context.clock
        self._on_failure = context.on_failure
        self._pending: dict[Log, _Pending] = {}
        self._half_created: set[Log] = set()  # those whose partial files could not be removed
        self._is_scheduled = False

    def add(self, log: Log, topic_id: uuid.UUID) -> None:
        """Note a new log, which has no directory yet. Its first flush makes its files durable."""
        metadata = encode_partition_metadata(topic_id)
        self._pending[log] = _Pending(metadata, self._clock.monotonic_ns() + _DELAY_MS * _NS_PER_MS)
        log.postpone_files(metadata)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._tasks.call_later(_DELAY_MS, self._create_next)

    def forget(self, log: Log) -> None:
        """Forget a log deleted before it had files. `DiskFull` if partial files remain."""
        if log in self._half_created:
            self._remove(log)
        del self._pending[log]

    def create(self, log: Log) -> None:
        """Create its files. Raises `DiskFull`, and then there are none, and `DiskFailed`."""
        files = self._files
        if log in self._half_created:
            self._remove(log)
        files.make_directory(log.directory)
        try:
            # First: without it, records could be taken for those of a later topic of this name.
            path = f"{log.directory}/{PARTITION_METADATA}"
            files.replace(path, self._pending[log].metadata, durable=False)
            log.create_files()
        except DiskFull:
            self._half_created.add(log)
            self._remove(log)
            raise
        del self._pending[log]

    def _remove(self, log: Log) -> None:
        """Remove its partial files. That may fail for lack of a descriptor; then retry later."""
        self._files.remove_tree(log.directory)
        self._half_created.discard(log)

    def _create_next(self) -> None:
        """Create the oldest one's, if due; the others later, as there may be thousands."""
        log = next(iter(self._pending), None)
        self._is_scheduled = log is not None
        if log is None:
            return
        started_ns = self._clock.monotonic_ns()
        wait_ns = self._pending[log].due_ns - started_ns
        if wait_ns <= 0:
            try:
                self.create(log)
            except DiskFull as error:
                self._is_scheduled = False
                logger.warning("%s: new partitions get their files with their first records", error)
                return
            except DiskFailed as error:
                self._on_failure(error)
                return
            log.close_idle()
            wait_ns = _PAUSE_SHARE * (self._clock.monotonic_ns() - started_ns)
        self._tasks.call_later(wait_ns / _NS_PER_MS, self._create_next)
