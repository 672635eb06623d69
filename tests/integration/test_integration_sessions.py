"""A broker's ZooKeeper session when its process is killed: ended by others, or taken over.

Sessions last 15 s here, so that what had to wait for one would be seen to.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kdist.zk import znodes
from tests.integration.broker_processes import SETTLED_S, BrokerProcess
from tests.integration.zookeeper_server import (
    PATIENT_SESSION_TIMEOUT_MS,
    ZooKeeperHost,
)

SESSION_S = PATIENT_SESSION_TIMEOUT_MS / 1000
SOON_S = SESSION_S / 2  # a Python process starts in it on a busy machine too
GIVEN_UP_S = 12.0  # of an end that ZooKeeper does not answer, which takes 5


@pytest.fixture
def broker(connect: str, tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(1, tmp_path, connect)
    broker.start()
    yield broker
    broker.end()


@pytest.fixture
def zk(connect: str, broker: BrokerProcess) -> Iterator[KazooClient]:
    client = KazooClient(connect)
    client.start()
    yield client
    client.stop()


def end_session(broker: BrokerProcess) -> tuple[int, str]:
    """The command's status, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "kdist.cli", "end-session", "--config", str(broker.file)],
        capture_output=True,
        text=True,
        timeout=SETTLED_S,
    )
    return done.returncode, done.stdout + done.stderr


def owner(zk: KazooClient) -> int | None:
    """The session that broker 1 is registered in."""
    stat = zk.exists(znodes.BROKER.path(1))
    return stat and stat.ephemeralOwner


def kept(broker: BrokerProcess) -> Path:
    return broker.directory / "zookeeper-session"


def test_the_session_of_a_killed_broker_is_ended_at_once(
    broker: BrokerProcess, zk: KazooClient
) -> None:
    session = owner(zk)
    assert session is not None
    assert kept(broker).stat().st_mode & 0o777 == 0o600
    broker.stop(signal.SIGKILL)
    begun_s = time.monotonic()
    assert owner(zk) == session
    assert end_session(broker) == (0, f"the session of broker 1, {session:#x}, is ended\n")
    assert owner(zk) is None
    assert zk.exists(znodes.CONTROLLER.path()) is None
    assert time.monotonic() - begun_s < SOON_S
    again = (0, f"the session of broker 1, {session:#x}, was over already\n")
    assert end_session(broker) == again
    broker.start()
    assert owner(zk) not in (None, session)


def test_the_session_of_a_running_broker_is_left_alone(
    broker: BrokerProcess, zk: KazooClient
) -> None:
    session = owner(zk)
    status, said = end_session(broker)
    assert status == 1
    assert said == (
        f"kdist: broker 1 runs: {broker.directory} is locked, so its session is not ended\n"
    )
    assert owner(zk) == session


def test_a_newer_start_loses_nothing_by_the_file_of_an_older_one(
    broker: BrokerProcess, zk: KazooClient
) -> None:
    old = kept(broker).read_bytes()
    broker.stop(signal.SIGKILL)
    broker.start()
    session = owner(zk)
    broker.stop(signal.SIGKILL)
    kept(broker).write_bytes(old)  # the newer could not keep its own, as on a full disk
    status, said = end_session(broker)
    assert status == 0
    # The older run's session may still be alive, with nothing in it: the start took that away.
    assert f"0x{int(json.loads(old)['id'], 16):x}" in said
    assert owner(zk) == session


def test_after_an_orderly_stop_there_is_nothing_to_end(
    zookeeper: ZooKeeperHost, broker: BrokerProcess
) -> None:
    assert broker.stop() == 0
    assert not kept(broker).exists()
    zookeeper.pause()  # it is not even asked
    try:
        assert end_session(broker) == (0, "broker 1 has left no session\n")
    finally:
        zookeeper.go_on()


def test_an_end_that_zookeeper_does_not_answer_is_given_up(
    zookeeper: ZooKeeperHost, broker: BrokerProcess
) -> None:
    broker.stop(signal.SIGKILL)
    zookeeper.pause()
    begun_s = time.monotonic()
    try:
        status, said = end_session(broker)
    finally:
        zookeeper.go_on()
    assert status == 1
    connect = broker.settings["zookeeper.connect"]
    assert said == f"kdist: no ZooKeeper server of {connect} answered within 5000 ms\n"
    assert time.monotonic() - begun_s < GIVEN_UP_S


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_start_after_a_kill_does_not_wait_for_its_own_old_session(
    broker: BrokerProcess, zk: KazooClient, is_renamed: bool
) -> None:
    session = owner(zk)
    broker.stop(signal.SIGKILL)
    if is_renamed:  # as a container that is made anew
        broker.settings["broker.host"] = "another"
    begun_s = time.monotonic()
    broker.start()
    assert time.monotonic() - begun_s < SOON_S
    assert "removing what the last run of this broker left in ZooKeeper" in broker.text
    assert owner(zk) not in (None, session)
