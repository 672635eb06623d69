"""`kdist agent` as a process: its messages to systemd, its stop, its error for a bad file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "kdist.cli", "agent", "--config")


@pytest.fixture
def manager(tmp_path: Path) -> socket.socket:
    """systemd's end of the datagram socket."""
    way = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    way.bind(str(tmp_path / "notify"))
    way.settimeout(60)
    return way


def told(manager: socket.socket, wanted: str) -> set[str]:
    """The messages that systemd got, up to and including `wanted`."""
    heard: set[str] = set()
    while wanted not in heard:
        heard.add(manager.recv(4096).decode())
    return heard


def test_an_agent_without_a_broker_is_ready_stays_alive_and_stops_when_told(
    tmp_path: Path, manager: socket.socket
) -> None:
    settings = tmp_path / "agent.properties"
    settings.write_text(
        "bootstrap.servers=127.0.0.1:1\nagent.interval.ms=100\n"
        f"agent.metrics.file={tmp_path}/kdist.prom\n"
    )
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "200000",
    }
    with subprocess.Popen(
        [*COMMAND, str(settings)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as agent:
        told(manager, "READY=1")
        told(manager, "WATCHDOG=1")
        assert "kdist_agent_queued_records" in (tmp_path / "kdist.prom").read_text()
        agent.send_signal(signal.SIGTERM)
        _, said = agent.communicate(timeout=60)
    assert agent.returncode == 0
    assert "STOPPING=1" in told(manager, "STOPPING=1")
    assert said.count("records cannot be sent") == 1
    assert not (tmp_path / "kdist.prom").exists()


def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    settings = tmp_path / "agent.properties"
    settings.write_text("bootstrap.servers=b1:9092\nagent.interval.ms=soon\n")
    ended = subprocess.run(
        [*COMMAND, str(settings)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "kdist: agent.interval.ms is 'soon', but must be an integer from 100 to 2147483647"
        f" ({settings}, line 2)."
    ]


def test_config_check_recognises_an_agents_file(tmp_path: Path) -> None:
    settings = tmp_path / "agent.properties"
    settings.write_text("bootstrap.servers=b1:9092\n")
    check = (sys.executable, "-m", "kdist.cli", "config", "check", str(settings))
    asked = [(*check, "--for", "agent"), check]
    statuses = [
        subprocess.run(each, cwd=ROOT, capture_output=True, timeout=60).returncode for each in asked
    ]
    assert statuses == [0, 1]


def test_an_agent_whose_security_settings_lack_something_is_refused_in_a_sentence(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "agent.properties"
    settings.write_text(
        "bootstrap.servers=b1:9092\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
    )
    ended = subprocess.run(
        [*COMMAND, str(settings)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "kdist: PLAIN needs sasl_username, or sasl_jaas_config with username"
    ]
