"""A log directory's periodic work: flushes, checkpoints, retention, expiry of producers.

It also closes idle files when others could not be opened for lack of descriptors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from kdist.errors import OutOfDescriptors
from kdist.runtime.tasks import Timer
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log

logger = logging.getLogger(__name__)

_DESCRIPTORS_CHECK_MS = 1_000
_TELL_EVERY_NS = 60_000_000_000
_PRODUCERS_PER_TICK = 10_000  # 3 ms


class Schedule:
    """Owner: the broker. Nothing happens before `start`, and nothing begins after `stop`.

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
        """Flush the logs whose oldest unflushed record is `flush.ms` old.

        Also if its time is in the future: the clock was set back, so its age is unknown.
        """
        directory = self._directory
        now_ms = directory.context.clock.now_ms()
        for log in list(directory.log_context.unflushed):
            since_ms = log.unflushed_since_ms
            if since_ms is not None and not 0 <= now_ms - since_ms < log.settings.flush_ms:
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
            self._directory.retain(self._high_watermark_of)
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
