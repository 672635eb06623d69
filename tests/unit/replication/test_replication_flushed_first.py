"""A follower whose records are flushed before they are exposed: its leader hears of no others."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

from fetcher_world import Stage
from replication_world import batch

from kdist.protocol.fetch import DivergingEpoch


def test_where_records_are_flushed_first_the_leader_hears_of_them_when_they_are() -> None:
    stage = Stage(flush_before_expose=True)
    stage.leader.answer(records=bytes(batch([b"a"], leader_epoch=4)), high_watermark=1)
    assert (stage.end, stage.asks()) == (1, [])
    stage.world.settle(1_000)
    assert stage.partition.log.recovery_point == 1
    assert (stage.asks(), stage.partition.high_watermark) == ([(4, 1)], 1)


def test_what_an_earlier_epoch_left_unflushed_is_flushed_before_the_next_leader_hears_of_it() -> (
    None
):
    stage = Stage(flush_before_expose=True)
    stage.leader.answer(records=bytes(batch([b"a"], leader_epoch=4)))
    log, ask_for, flushed = stage.partition.log, stage.leader.ask_for, list[int]()

    def noted(*asked: Any) -> None:
        flushed.append(log.recovery_point)
        ask_for(*asked)

    stage.leader.ask_for = noted
    stage.follow(5)
    stage.world.settle(1_000)
    assert (flushed, stage.asks()) == ([1], [(5, 1)])


def test_a_follower_on_a_full_disk_tries_again_in_a_while_to_flush_what_it_has() -> None:
    stage = Stage(flush_before_expose=True)
    stage.leader.answer(records=bytes(batch([b"a"], leader_epoch=4)))
    stage.world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    stage.follow(5)
    stage.world.settle(1_000)
    assert (stage.asks(), stage.world.failures) == ([], [])
    stage.world.disk.heal()
    stage.world.settle(5_000)
    assert stage.asks() == [(5, 1)]


def test_a_follower_tells_of_nothing_that_it_found_no_room_to_flush() -> None:
    stage = Stage(flush_before_expose=True)
    stage.leader.answer(records=bytes(batch([b"a"], leader_epoch=4)))
    stage.world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    stage.world.settle(5_000)
    assert (stage.end, stage.partition.log.recovery_point, stage.asks()) == (1, 0, [])
    stage.world.disk.heal()
    stage.world.settle(5_000)
    assert (stage.partition.log.recovery_point, stage.asks()) == (1, [(4, 1)])


def test_a_follower_that_hears_late_that_it_is_to_flush_first_has_flushed_what_it_told_of() -> None:
    stage = Stage()
    log = stage.partition.log
    stage.leader.answer(records=bytes(batch([b"a"], leader_epoch=4)))
    assert (log.recovery_point, stage.asks()) == (0, [(4, 1)])
    stage.partition.configure(replace(log.settings, flush_before_expose=True))
    stage.leader.answer(records=bytes(batch([b"b"], base_offset=1, leader_epoch=4)))
    assert (log.flush_mark, log.recovery_point, stage.asks()) == (None, 0, [])
    stage.world.settle(1_000)
    assert log.flush_mark == stage.world.directory.content_id
    assert (log.recovery_point, stage.asks()) == (2, [(4, 2)])


def test_the_leader_hears_of_what_a_truncation_leaves_once_it_is_flushed() -> None:
    stage = Stage(flush_before_expose=True)
    later = batch([b"b"], leader_epoch=4, base_offset=1)
    stage.leader.answer(records=bytes(batch([b"a"], leader_epoch=2) + later))
    stage.world.settle(1_000)
    log, disk = stage.partition.log, stage.world.disk
    disk.fail(errno.ENOSPC, when=lambda call: "leader-epoch" in call.path)
    for _ in stage.leader.asked[1:]:
        stage.leader.answer()
    stage.leader.answer(diverging_epoch=DivergingEpoch(epoch=2, end_offset=1))
    stage.world.settle(3_000)
    assert (stage.end, log.recovery_point, stage.asks()) == (1, 0, [])
    disk.heal()
    stage.world.settle(5_000)
    assert (stage.end, log.recovery_point, stage.asks()) == (1, 1, [(4, 1)])
