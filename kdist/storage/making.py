"""The files of new logs: made before the first append, else in the background a little later.

A directory with four files took ext4 0.3 to 1.4 ms each where hundreds were made, and whoever
creates hundreds of partitions does not wait for that. Until then a log has nothing to lose: it is
as empty as one that a power loss took, which is created again when the controller next tells of
it. One that is deleted before has never been on the disk.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from kdist.errors import DiskFailed, DiskFull
from kdist.runtime.files import Files
from kdist.runtime.tasks import Tasks
from kdist.storage.log import Log
from kdist.storage.meta import encode_partition_metadata
from kdist.storage.names import PARTITION_METADATA

logger = logging.getLogger(__name__)

_DELAY_MS = 250  # so that those who are answered meanwhile, and delete again, do not wait for it


class Maker:
    """Owner: the log directory. `on_failure` hears of a disk that failed in the background."""

    def __init__(
        self, files: Files, tasks: Tasks, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._files = files
        self._tasks = tasks
        self._on_failure = on_failure
        self._unmade: dict[Log, bytes] = {}  # with what is to be in partition.metadata
        self._is_scheduled = False

    def add(self, log: Log, topic_id: uuid.UUID) -> None:
        """A new log, which has no directory yet. What of it must last, its first flush saves."""
        log.is_made = False
        log.is_changed = True
        metadata = self._unmade[log] = encode_partition_metadata(topic_id)
        log.files_to_save[_metadata_path(log)] = metadata
        log.renamed_in |= {log.directory.rpartition("/")[0], log.directory}
        if not self._is_scheduled:
            self._is_scheduled = True
            self._tasks.call_later(_DELAY_MS, self._make_next)

    def forget(self, log: Log) -> None:
        """It was deleted before it had files."""
        del self._unmade[log]

    def make(self, log: Log) -> None:
        """Put its files there. Raises `DiskFull`, and then there are none; `DiskFailed`."""
        files = self._files
        files.make_directory(log.directory)
        try:
            # First: records without it might be taken for those of a later topic of the name.
            files.replace(_metadata_path(log), self._unmade[log], durable=False)
            log.active.make_files()
        except DiskFull:
            files.remove_tree(log.directory)
            raise
        del self._unmade[log]
        log.is_made = True

    def _make_next(self) -> None:
        """One in a turn of the loop, as there may be thousands."""
        log = next(iter(self._unmade), None)
        self._is_scheduled = log is not None
        if log is None:
            return
        try:
            self.make(log)
        except DiskFull as error:
            self._is_scheduled = False
            logger.warning("%s: the files of new partitions wait for their first records", error)
        except DiskFailed as error:
            self._on_failure(error)
        else:
            log.rest()
            self._tasks.call_soon(self._make_next)


def _metadata_path(log: Log) -> str:
    return f"{log.directory}/{PARTITION_METADATA}"
