"""What the simulator's checker notices: each bug here went unnoticed, or excused itself, before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kdist.controller import elections, isr_proposals
from kdist.records.batch import BatchHeader
from kdist.replication.in_sync import InSyncReplicas
from kdist.storage import producers
from kdist.storage.producers import Producer
from tests.simulator.bug import Bug, Planted, patched
from tests.simulator.compacted import Kept, Table
from tests.simulator.playing import run

SEEDS = range(12)


def _take_old_epochs(check: Callable[..., None]) -> Callable[..., None]:
    def check_newer(producer: Producer, header: BatchHeader) -> None:
        if header.producer_epoch >= producer.epoch:
            check(producer, header)

    return check_newer


NOBODY_IS_ELIGIBLE = tuple(
    Bug(owner, "eligible_after", lambda _: lambda *_given: ())
    for owner in (elections, isr_proposals)
)
BUGS: dict[str, tuple[Planted, str]] = {
    "S1: who leaves an ISR below its minimum is not eligible": (NOBODY_IS_ELIGIBLE, "S1"),
    "S6: a leader does not wait for others to delete records": (
        Bug(InSyncReplicas, "lowest_start", lambda _: lambda _self, start: start),
        "S6",
    ),
    "S10: an epoch that was replaced is taken": (
        Bug(producers, "_check_order", _take_old_epochs),
        "S10",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_excused_itself_is_noticed(name: str) -> None:
    bug, promise = BUGS[name]
    with patched(*([bug] if isinstance(bug, Bug) else bug)):
        outcomes = (run(seed) for seed in SEEDS)
        assert any(each.violation.startswith(f"{promise}:") for each in outcomes)


def _kept(base: int, key: bytes, value: bytes | None) -> Kept:
    return Kept(base, base + 1, -1, 0, {base: (key, value)})


def test_after_a_loss_the_last_of_a_key_is_what_was_before_it() -> None:
    table = Table(delete_retention_s=10.0)
    for base, value in enumerate((b"old", b"new")):
        table.commit(_kept(base, b"k", value), now_s=1.0)
    table.cut(1)
    assert (table.end, table.pairs) == (1, {0: (b"k", b"old")})
    assert table.fault([_kept(0, b"k", b"old")], 0, now_s=2.0) == ""
    assert table.fault([], 0, now_s=2.0) != ""


def test_only_a_last_value_must_not_be_cut_off_below_the_high_watermark() -> None:
    table = Table(delete_retention_s=10.0)
    for base, value in enumerate((b"old", b"new")):
        table.commit(_kept(base, b"k", value), now_s=1.0)
    assert not table.needs(0, 1)
    assert table.needs(1, 2)
