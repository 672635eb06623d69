"""Known bugs of the cleaner, to be planted: what our rules of compaction are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdist.config.kinds import INT32_MAX
from kdist.storage import loading
from kdist.storage.cleaning import cleaner, pass_runner
from kdist.storage.cleaning.cleaner import Cleaner
from kdist.storage.cleaning.selection import DirtySection
from kdist.storage.log import Log
from tests.simulator.bug import Bug, Planted


def _asking(**otherwise: Any) -> Callable[..., Any]:
    """Each request is asked with these fields."""
    return lambda sound: lambda *given, **named: sound(*given, **named)._replace(**otherwise)


def _clean_to(limit_of: Callable[[Log, int], int]) -> Callable[..., Any]:
    def make(measure: Callable[..., DirtySection]) -> Callable[..., DirtySection]:
        def dirty_section_of(log: Log, high_watermark: int, now_ms: int) -> DirtySection:
            flushed, log.recovery_point = log.recovery_point, log.end_offset
            try:
                return measure(log, limit_of(log, high_watermark), now_ms)
            finally:
                log.recovery_point = flushed

        return dirty_section_of

    return make


def _keep_the_old(_: Callable[..., None]) -> Callable[..., None]:
    return lambda *_given: None


PLANTED_IN_CLEANING: dict[str, Planted] = {
    "a tombstone goes with what it deletes": Bug(
        cleaner, "Rewrite", _asking(delete_retention_ms=0, expires=True)
    ),
    "tombstones go while a replica is away": Bug(cleaner, "Rewrite", _asking(expires=True)),
    "a producer's last batch is cleaned away": Bug(cleaner, "NoteProducers", _asking(producers=())),
    "an epoch's first batch is cleaned away": Bug(
        pass_runner, "Sifting", lambda sound: lambda *given: sound(*given[:-1], INT32_MAX)
    ),
    "what is not committed is cleaned": Bug(
        cleaner, "dirty_section_of", _clean_to(lambda log, _: log.end_offset)
    ),
    "what is not flushed is cleaned": Bug(
        cleaner, "dirty_section_of", _clean_to(lambda _, mark: mark)
    ),
    "a pass goes on over what was truncated": Bug(
        Cleaner, "_is_there", lambda _sound: lambda *_given: True
    ),
    "a start forgets a swap that had begun": Bug(loading, "complete_swaps", _keep_the_old),
}
