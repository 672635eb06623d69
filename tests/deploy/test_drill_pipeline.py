"""Drills: real input from one datacenter into files in the other, whatever is killed or cut.

They build on each other: each sends more of the year, and in the end all of it is there, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import get_args

import pytest

from kdist.config.load_job import Step
from lab.demo.settings import FLIGHTS, HOSTS
from tests.deploy.deployed import Site
from tests.deploy.drilling import Lab, await_that
from tests.deploy.pipeline import Pipeline

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]

KILLS = 5
CUT_S = 60.0
A_FEW = 2_000

# A replay's own step has nothing to do in a load that replays nothing.
DEADLY = [step for step in get_args(Step) if step != "superseded"]


@pytest.fixture(scope="module")
def pipeline(site: Site) -> Pipeline:
    return Pipeline(site)


def test_the_timer_loads_what_the_mirror_brings(pipeline: Pipeline, lab: Lab) -> None:
    pipeline.produce(100_000)
    pipeline.await_mirrored()
    pipeline.await_loaded()
    assert pipeline.gateway.unit(pipeline.timer, "LastTriggerUSec")["LastTriggerUSec"] != ""
    pipeline.assert_once()


def test_a_mirror_that_is_killed_loses_nothing_and_sends_nothing_twice(
    pipeline: Pipeline, lab: Lab
) -> None:
    for _ in range(KILLS):
        before = pipeline.mirror.unit(pipeline.mirror_unit, "MainPID")["MainPID"]
        pipeline.produce(20_000)
        lab.do("kill", pipeline.mirror.name, pipeline.mirror_unit)
        await_that(partial(is_another, pipeline, before), "the mirror to be started again")
    pipeline.await_mirrored()


def is_another(pipeline: Pipeline, before: str) -> bool:
    shown = pipeline.mirror.unit(pipeline.mirror_unit, "MainPID", "ActiveState")
    return shown["ActiveState"] == "active" and shown["MainPID"] not in ("0", before)


def test_a_mirror_waits_while_the_link_is_cut(pipeline: Pipeline, lab: Lab) -> None:
    before = pipeline.mirror.unit(pipeline.mirror_unit, "MainPID")
    lab.do("cut", repr(pipeline.source), repr(pipeline.target))
    try:
        end = time.monotonic() + CUT_S
        arrived = pipeline.sent.total()
        pipeline.produce(20_000)
        # The minute is what is tried: nothing comes across, and nobody gives up.
        await_that(lambda: time.monotonic() >= end, "the minute to be over", 2 * CUT_S)
    finally:
        lab.do("heal")
    assert pipeline.sent.total() > arrived
    pipeline.await_mirrored()
    assert pipeline.mirror.unit(pipeline.mirror_unit, "MainPID") == before


def test_a_load_that_is_killed_at_any_step_is_done_by_the_next(
    pipeline: Pipeline, lab: Lab
) -> None:
    with pipeline.timer_off():
        for step in DEADLY:
            pipeline.produce(A_FEW)
            pipeline.await_mirrored()
            with killed_after(pipeline, step):
                assert not pipeline.gateway.works(f"systemctl start {pipeline.load_unit}"), step
                shown = pipeline.gateway.unit(pipeline.load_unit, "Result", "ExecMainStatus")
                assert shown == {"Result": "signal", "ExecMainStatus": "9"}, step
            pipeline.gateway.says(f"systemctl reset-failed {pipeline.load_unit}")
        pipeline.run_load()
        pipeline.assert_once()


def test_a_replay_that_is_killed_leaves_every_record_in_the_files_once(
    pipeline: Pipeline, lab: Lab
) -> None:
    """Killed where the loads that it stands for are out of sight, and its own is not there yet."""
    replay = f" replay --topic {pipeline.prefix}{FLIGHTS} --from 1"
    with pipeline.timer_off():
        with killed_after(pipeline, "superseded", replay):
            assert not pipeline.gateway.works(f"systemctl start {pipeline.load_unit}")
        pipeline.gateway.says(f"systemctl reset-failed {pipeline.load_unit}")
        pipeline.run_load()
        pipeline.assert_once()


@contextmanager
def killed_after(pipeline: Pipeline, step: str, arguments: str = "") -> Iterator[None]:
    """The unit's load, or a command of it, kills itself after a step of its commit."""
    drilled = f"/etc/kdist/load/{pipeline.job}-drill.properties"
    folder = f"/run/systemd/system/{pipeline.load_unit}.d"
    run = f"/opt/kdist/spark/current/bin/python -m kdist.cli load{arguments} --config {drilled}"
    gateway = pipeline.gateway
    gateway.says(
        f"mkdir -p {folder} && cp -p {pipeline.job_file} {drilled}"
        f" && echo drill.kill.after={step} >>{drilled}"
        f" && printf '[Service]\\nExecStart=\\nExecStart={run}\\n' >{folder}/drill.conf"
        " && systemctl daemon-reload"
    )
    try:
        yield
    finally:
        gateway.says(f"rm -r {folder} {drilled} && systemctl daemon-reload")


def test_in_the_end_every_flight_is_in_the_files_once(pipeline: Pipeline, lab: Lab) -> None:
    pipeline.produce()
    pipeline.await_mirrored()
    pipeline.await_loaded()
    pipeline.assert_once()
    assert (pipeline.sent.total(), len(pipeline.sent)) == (336_776, 365)
    assert pipeline.flights_loaded()["2013-01-01"] == 842


def test_a_mirror_stops_at_lost_records_and_resumes_where_it_is_told(
    pipeline: Pipeline, lab: Lab
) -> None:
    """The drill of a dead disk may have left partitions that are stopped: they go on here, too."""
    pipeline.mirror.says(f"systemctl stop {pipeline.mirror_unit}")
    await_that(lambda: pipeline.behind(HOSTS) > 0, "records that are not mirrored")
    pipeline.delete_records(HOSTS)
    lost = pipeline.lost()
    pipeline.mirror.says(f"systemctl start {pipeline.mirror_unit}")
    # All of them: it finds one after another, and one that is found later would stay stopped.
    await_that(lambda: pipeline.stopped() == lost, f"the mirror to say that {lost} lack records")
    assert {topic for topic, _ in lost} == {HOSTS}
    pipeline.mirror.says(f"systemctl stop {pipeline.mirror_unit}")
    for topic, partition in lost:
        pipeline.seek(topic, partition)
    pipeline.mirror.says(f"systemctl start {pipeline.mirror_unit}")
    await_that(lambda: pipeline.behind(HOSTS) == 0, "the mirror to catch up")
    assert (pipeline.lost(), pipeline.stopped()) == ([], [])
