"""Hostile bytes and random pipelines against a live broker: answered in order, or closed."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdist.protocol import api_versions
from kdist.protocol.api_versions import ApiVersionsRequest
from tests.integration.broker_processes import BrokerProcess
from tests.integration.fire_attacks import Arena, last_words
from tests.integration.fire_fuzz import SLOW_SENDERS, prepare, run, target
from tests.integration.fire_wire import Wire
from tests.integration.pipelining import CAREFUL
from tests.integration.pipelining import run as run_pipelines
from tests.integration.pipelining import target as pipelined_target
from tests.integration.pipelining_sessions import ENDS

SECONDS = 20.0
SESSIONS, PIPELINED_S = 25, 60.0  # at most
GROWTH_MIB_MAX = 64.0  # what a busy broker's allocator may keep; a leak would pass it soon


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with target(tmp_path) as broker:
        yield broker


def test_hostile_peers_harm_nobody_but_themselves(broker: BrokerProcess) -> None:
    seed = random.SystemRandom().randrange(2**32)
    report = run(broker, SECONDS, seed)
    sys.stdout.write(f"seed {seed}: {report.text()}")
    assert report.slow_answered == SLOW_SENDERS
    assert report.after_mib - report.before_mib < GROWTH_MIB_MAX


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_every_request_survives_a_flip_of_each_of_its_bytes(broker: BrokerProcess) -> None:
    prepare(broker)
    arena = Arena(broker.port, seed=1)
    for _ in range(arena.flips_in_all):
        last_words(arena, next(arena.flips))
    serves(broker)


def serves(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire:
        answer = wire.ask(api_versions.API, 0, ApiVersionsRequest())
    assert answer.error_code == 0


@pytest.mark.parametrize("settings", [{}, CAREFUL], ids=["prompt", "careful"])
def test_pipelined_requests_are_answered_in_order_and_rightly(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with pipelined_target(tmp_path, **settings) as broker:
        report = run_pipelines(broker, seed=7, count=SESSIONS, seconds=PIPELINED_S)
    sys.stdout.write(report.text())
    assert set(report.ends) == set(ENDS)
    assert report.requests > 500
    assert report.after_mib - report.before_mib < 64  # what an allocator may keep
