"""A script of log operations, run again for each of its disk calls with a fault at that call."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from storage_life import Life
from storage_world import CLICKS, World, append, expected_lines, lines

from kdist.errors import DiskFailed
from kdist.runtime.simulated_disk import PowerLoss
from tests.examples import first_of


def fail_at(n: int, *, forever: bool) -> bool:
    """Run the script with a fault at call `n`; returns whether it had that many."""
    world = World(seed=n)
    life, before = Life(world), len(world.disk.trace)
    world.disk.fail(after_calls=n, forever=forever)
    try:
        life.run()
    except DiskFailed:
        pass
    else:
        assert len(world.disk.trace) - before <= n, "the fault went unnoticed"
        return False
    world.disk.heal()
    life.check_after_the_crash()
    return True


def crash_at(n: int, seed: int) -> bool:
    """Run the script until a power loss at call `n`; returns whether it had that many."""
    world = World(seed=seed)
    life = Life(world)
    world.disk.crash_at(n)
    try:
        life.run()
    except PowerLoss:
        life.check_after_the_crash()
        return True
    return False


def sweep(live: Callable[[int], bool], call: str, first: int) -> None:
    """Run once for each call until there are no more; a failure says how to reproduce it."""
    n = first
    try:
        while live(n):
            n += 1
    except BaseException as error:
        error.add_note(f"to see it again: {call % n}")
        raise
    assert n > 300


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True])
def test_a_disk_failure_at_any_call_is_noticed_and_loses_nothing_confirmed(
    forever: bool,
) -> None:
    sweep(partial(fail_at, forever=forever), f"fail_at(%d, {forever=})", 0)


@pytest.mark.slow
def test_a_power_loss_at_any_call_loses_nothing_confirmed() -> None:
    sweep(partial(crash_at, seed=0), "crash_at(%d, seed=0)", 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(1, 20), 4, others=pytest.mark.stress))
def test_a_power_loss_at_any_call_loses_nothing_confirmed_whatever_survives(seed: int) -> None:
    sweep(partial(crash_at, seed=seed), f"crash_at(%d, {seed=})", 1)


def test_recovery_interrupted_by_a_power_loss_can_be_repeated() -> None:
    """Recovery itself is interrupted at each of its calls."""
    n, is_done = 0, False
    while not is_done:
        n += 1
        world = World(seed=n)
        log = world.log(segment_bytes=300, index_interval_bytes=0)
        for _ in range(12):
            append(world, log, 3)
        world.flush(log)
        append(world, log, 9)
        world.lose_power()
        world.disk.crash_at(n)
        try:
            world.open()
        except PowerLoss:
            world.files = world.disk.power_on(random.Random(n))
        else:
            is_done = True
            world.lose_power()
        world.open()
        assert lines(world.directory.logs[CLICKS]) in (expected_lines(36), expected_lines(45))
    assert n > 20
