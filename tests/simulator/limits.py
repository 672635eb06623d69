"""In some seeds sizes are so small that their limits are reached, and much takes several steps.

Answers to fetches hold a part of what there is, an index has an entry for almost each batch, the
cleaner's map does not hold all keys, a controller's write and the loading of offsets take several
goes. All draws are of a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kdist.broker import offsets_log
from kdist.controller import writing
from kdist.groups import deletion
from kdist.records.cleaning import SLOT_BYTES
from kdist.storage.cleaning import cleaner
from tests.simulator.bug import Bug, patched
from tests.simulator.cluster import Cluster

_SHARE = 0.4  # of seeds


class Limits:
    """Owner: the history."""

    def __init__(self, cluster: Cluster) -> None:
        rng = self._rng = cluster.stream("limits")
        self._constants: dict[tuple[Any, str], int] = {}
        self._is_on = rng.random() < _SHARE
        patience_ms = cluster.stream("patience").choice((300, 1_000, 30_000, 30_000))
        cluster.settings |= {"controller.socket.timeout.ms": str(patience_ms)}
        if not self._is_on:
            return
        cluster.settings |= {
            "replica.fetch.max.bytes": str(rng.choice((300, 1_000, 1 << 20))),
            "replica.fetch.response.max.bytes": str(rng.choice((500, 3_000, 10 << 20))),
            "fetch.max.bytes": str(rng.choice((1_024, 4_000, 57_671_680))),
            "log.index.interval.bytes": str(rng.choice((1, 150, 4_096))),
        }
        self._constants = {
            (writing, "CHUNK"): rng.choice((2, 5, 500)),
            (writing, "CHUNKS_IN_FLIGHT"): rng.choice((1, 2, 8)),
            (offsets_log, "_STEP_BYTES"): rng.choice((200, 2_000, 1 << 16)),
            (deletion, "TOMBSTONE_BYTES_MAX"): rng.choice((50, 1 << 17)),
            (cleaner, "SLOT_BYTES"): rng.choice((1 << 18, 1 << 17, SLOT_BYTES)),
        }

    def draw_of_consumer(self) -> dict[str, int]:
        """How much a consumer fetches at a time."""
        if not self._is_on:
            return {}
        return {
            "fetch_max_bytes": self._rng.choice((200, 2_000, 50 << 20)),
            "max_partition_fetch_bytes": self._rng.choice((1, 400, 1 << 20)),
        }

    @contextmanager
    def applied(self, count: Callable[[str], None]) -> Iterator[None]:
        """Within the block the code has such limits; `count` is told of what reaches them."""
        constants = [Bug(*where, lambda _, to=to: to) for where, to in self._constants.items()]
        full = Bug(writing.MultiBuilder, "add", partial(_add, count))
        with patched(*constants, full):
            yield


def _add(count: Callable[[str], None], add: Callable[..., bool]) -> Callable[..., bool]:
    def add_seen(self: writing.MultiBuilder, step: writing.Step) -> bool:
        is_added = add(self, step)
        if not is_added:
            count("write in several multis")
        return is_added

    return add_seen
