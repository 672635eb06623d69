"""Bugs of the storage, to be planted: one place each, as a tired engineer leaves it."""

from __future__ import annotations

from collections.abc import Callable

from kdist.storage import flushing, loading, producers, reading
from kdist.storage.background import OffsetSaver
from kdist.storage.epochs import LeaderEpochs
from kdist.storage.flushing import Flusher, FlushJob
from kdist.storage.log import Log
from kdist.storage.producers import ProducerStates
from kdist.storage.trimming import Trimmer, Truncation
from tests.simulator.bug import Bug, Edit, Planted, Spot


def _begin_the_newest_at_the_end(_: Callable[..., None]) -> Callable[..., None]:
    def abandon(self: LeaderEpochs, log_end_offset: int) -> None:
        self._before.clear()
        if self.start_of_latest > log_end_offset:
            self.assign(self.latest, log_end_offset)

    return abandon


def _whoever_leads(truncate: Callable[..., None]) -> Callable[..., None]:
    return lambda self, log, offset, done, _, lowers_start: truncate(
        self, log, offset, done, lambda: True, lowers_start
    )


PLANTED_IN_STORING: dict[str, Planted] = {
    # Failures
    "of several appends that are abandoned the first undoes the others": Edit(
        *(Spot.AIMED, Log.abandon), "self._under_way.pop()", "self._under_way.popleft()"
    ),
    "an append that failed leaves its producers' sequences": Edit(
        *(Spot.AIMED, Log.abandon), "latest.producers_before.items()", "()"
    ),
    "a flush that failed forgets the small files": Edit(
        *(Spot.AIMED, Log.give_up_flush),
        "unsynced.files_to_save | self.files_to_save",
        "self.files_to_save",
    ),
    "a flush that finds no room tells nobody": Edit(
        *(Spot.AIMED, Flusher._fail),
        "for request in requests.values():",
        "for request in () if isinstance(error, DiskFull) else requests.values():",
    ),
    "a truncation that finds no room is not undone": Edit(
        *(Spot.AIMED, Truncation.run), "self._put_back()\n", "self._retired.clear()\n"
    ),
    "a log is cut before its recovery point is lowered on the disk": Edit(
        *(Spot.AIMED, Trimmer._truncate), "self._saver.request(saved)", "saved(None)"
    ),
    "a start keeps the epochs of what it cuts off": Edit(
        *(Spot.AIMED, loading._complete_epochs),
        "log.epochs.truncate_from_end(log.end_offset)",
        "log.epochs.truncate_from_end(log.end_offset + 1)",
    ),
    "a snapshot of what is cut off is written later": Edit(
        *(Spot.LOSS, Log.finish_cut), "self.forget_snapshots()", "pass"
    ),
    "an append across epochs that fails leaves the last epoch in the first one's place": (
        Bug(LeaderEpochs, "abandon", _begin_the_newest_at_the_end),
        Edit(
            *(Spot.AIMED, LeaderEpochs.assign),
            "bisect_right(epochs, epoch)",
            "bisect_left(epochs, epoch)",
        ),
    ),
    "a truncation that begins as its broker comes to lead takes the new epoch with it": (
        Bug(Trimmer, "_truncate", _whoever_leads),
        Edit(*(Spot.LATE, LeaderEpochs._end_at), "self._led > self.latest", "False"),
    ),
    # Losses of page caches
    "a log is marked as flushed before it is": Edit(
        *(Spot.LOSS, flushing.plan_flush),
        "spares = [spare for",
        "_change_marks(files, path, jobs)\n    spares = [spare for",
    ),
    "records are exposed unflushed while the log's flush mark is there": Edit(
        *(Spot.LOSS, Log.configure),
        "self.is_flushed_first |= settings",
        "self.is_flushed_first = settings",
    ),
    "a flush that began before the setting came writes the mark": Edit(
        *(Spot.THREADS, FlushJob.finish),
        "if self.is_mark_due:",
        "self.is_flushed_first = self.log.settings.flush_before_expose\n"
        "    if self.is_flushed_first and not self.log.flush_mark:\n"
        "        self.change_mark(self.log.context.files)\n"
        "        self.log.context.files.sync_directory(self.log.directory)\n"
        "    if self.is_mark_due:",
    ),
    # DeleteRecords
    "deleted records come back with a crash": Edit(
        *(Spot.TRIM, Trimmer.delete_records),
        "self._saver.request(saved)",
        "saved(None)",
    ),
    # Producers
    "a zombie's epoch is not compared": Edit(
        *(Spot.EPOCHS, producers._check_order), "if epoch < producer.epoch", "if epoch < 0"
    ),
    "a new epoch may begin at any sequence": Edit(
        *(Spot.EPOCHS, producers._check_order),
        "expected = 0\n    else",
        "expected = sequence\n    else",
    ),
    "a producer's batches of the epoch before count in the next": Edit(
        *(Spot.EPOCHS, ProducerStates.append), "if epoch == producer.epoch", "if batch"
    ),
    "only four batches of a producer are remembered": Edit(
        *(Spot.EPOCHS, ProducerStates.append), "[1 - BATCHES_KEPT :]", "[2 - BATCHES_KEPT :]"
    ),
    "a batch from before those remembered is taken for a retry": Edit(
        *(Spot.EPOCHS, producers._find_duplicate),
        "batch.last_sequence == last and batch.first_sequence == first",
        "batch.last_sequence >= last",
    ),
    "the first record after a snapshot of producers is not replayed": Edit(
        *(Spot.EPOCHS, loading._replayed),
        "readable_spans(log, offset, end_offset, own)",
        "readable_spans(log, offset + 1, end_offset, own)",
    ),
    # Limits
    "a sealed segment is read as far as the active one": Edit(
        *(Spot.LIMITS, reading._end_position),
        "following if segment is log.active else segment.size",
        "following",
    ),
    # Threads
    "what is written during a flush counts as flushed": Edit(
        *(Spot.THREADS, FlushJob.finish), "self.end_offset", "self.log.end_offset"
    ),
    "a save serves those who asked during it": Edit(
        *(Spot.THREADS, OffsetSaver._end),
        "for done in waiting:",
        "waiting, self._waiting = [*waiting, *self._waiting], []\n    for done in waiting:",
    ),
    "what is being cut off is read": Edit(
        *(Spot.THREADS, reading._locate),
        "later.base_offset >= log.truncating_from",
        "later is None",
    ),
    "retention goes on in a log that is being cut off": Edit(
        *(Spot.THREADS, Trimmer._drop),
        "if is_there and not (log.is_truncating or log.is_swapping)",
        "if is_there",
    ),
}
