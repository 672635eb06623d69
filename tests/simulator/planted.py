"""Known bugs, planted to see how many seeds it takes to find each.

Each has been in some broker's history, or is what a rule of ours is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kdist.broker import offsets_log
from kdist.broker.offsets_log import PartitionedOffsetsLog
from kdist.controller import writing
from kdist.errors import Error
from kdist.replication.partition import Partition
from kdist.storage import directory, loading
from kdist.storage.background import Background
from kdist.storage.directory import LogDirectory
from kdist.storage.log import Log
from kdist.storage.producers import ProducerStates
from kdist.zk.client import Operation, ZooKeeper
from tests.simulator.bug import Bug, Edit, Planted, patched, places_of
from tests.simulator.nearest import PLANTED_IN_FOLLOWERS
from tests.simulator.planted_cleaning import PLANTED_IN_CLEANING
from tests.simulator.planted_controlling import PLANTED_IN_CONTROLLING
from tests.simulator.planted_following import PLANTED_IN_FOLLOWING
from tests.simulator.planted_moves import PLANTED_IN_MOVES
from tests.simulator.planted_replicas import PLANTED_IN_REPLICATION
from tests.simulator.planted_serving import PLANTED_IN_SERVING
from tests.simulator.planted_storing import PLANTED_IN_STORING


def _begin_epoch_at_end(begin: Callable[..., None]) -> Callable[..., None]:
    def begin_epoch(log: Log, leader_epoch: int) -> None:
        reserved, log.reserved_offset = log.reserved_offset, log.end_offset
        try:
            begin(log, leader_epoch)
        finally:
            log.reserved_offset = reserved

    return begin_epoch


def _forget_producers(_: Callable[..., Any]) -> Callable[..., Any]:
    def loaded_producers(*_: Any) -> Iterator[Any]:
        yield from ()
        return ProducerStates()

    return loaded_producers


def _write_unfenced(_: Callable[..., Any]) -> Callable[..., Any]:
    async def fenced_multi(zk: ZooKeeper, _: int, operations: Sequence[Operation]) -> Any:
        return await zk.multi(list(operations))

    return fenced_multi


def _commit_early(append: Callable[..., None]) -> Callable[..., None]:
    def append_later(
        self: PartitionedOffsetsLog, partition: int, records: list[Any], done: Callable[..., None]
    ) -> None:
        done(Error.NONE)
        append(self, partition, records, lambda _: None)

    return append_later


def _trust_the_disk(load: Callable[..., Any]) -> Callable[..., Any]:
    def load_log(*given: Any, is_clean: bool, now_ms: int) -> Any:
        return load(*given, is_clean=True, now_ms=now_ms)

    return load_log


def _leave_files(_: Callable[..., None]) -> Callable[..., None]:
    return lambda *_: None


def _read_to_the_end(_: Callable[..., int]) -> Callable[..., int]:
    return lambda partition, *_: partition.log.end_offset


def _stop_unflushed(flush: Callable[..., None]) -> Callable[..., None]:
    def flush_unless_stopping(self: LogDirectory, logs: Any, prepare: Any = None) -> None:
        if prepare is None:
            flush(self, logs)

    return flush_unless_stopping


PLANTED: dict[str, Planted] = {
    "an epoch begins at the log's end, not behind the appends under way": Bug(
        Log, "begin_epoch", _begin_epoch_at_end
    ),
    "producers' states are not rebuilt at a start": Bug(
        loading, "loaded_producers", _forget_producers
    ),
    "a controller does not check that it still is": Bug(writing, "fenced_multi", _write_unfenced),
    "a commit is answered before it is in the log": Bug(
        offsets_log.PartitionedOffsetsLog, "append", _commit_early
    ),
    "recovery trusts what is on the disk": Bug(directory, "load_log", _trust_the_disk),
    "a deleted log's directory stays": Bug(Background, "remove_tree", _leave_files),
    "consumers read what is not committed": Bug(Partition, "visible_end", _read_to_the_end),
    "a stop is called clean that has flushed nothing": Bug(LogDirectory, "_flush", _stop_unflushed),
    **PLANTED_IN_REPLICATION,
    **PLANTED_IN_MOVES,
    **PLANTED_IN_CLEANING,
    **PLANTED_IN_FOLLOWERS,
    **PLANTED_IN_FOLLOWING,
    **PLANTED_IN_CONTROLLING,
    **PLANTED_IN_STORING,
    **PLANTED_IN_SERVING,
}


AND = "; "  # between bugs that are planted together


@contextmanager
def planted(bugs: str) -> Iterator[Counter[str]]:
    """Within the block the bug, or all of these, are in the code; none if it is empty. Yields how
    often each `Edit` of them is met."""
    places = [(each, name) for name in names_in(bugs) for each in places_of(PLANTED[name])]
    met = Counter[str]()
    with patched(*(each for each, _ in places)) as counts:
        yield met
    for number, count in counts.items():
        met[places[number][1]] += count


def names_in(bugs: str) -> list[str]:
    """Those that are planted together."""
    return bugs.split(AND) if bugs else []


def may_be_met(bug: str) -> bool:
    """Whether nothing tells if it is met, as some of it is no `Edit`."""
    return not all(isinstance(each, Edit) for each in places_of(PLANTED[bug]))
