"""The demo as a user starts it, with fewer flights: it works, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.demo import flights
from lab.place import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT = 3_000


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lab.demo", "--limit", str(LIMIT), "--home", home, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(home: Path) -> list[str]:
    """Command lines of what runs on the demo's directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(home) in line:
            found.append(line)
    return found


def test_a_year_of_flights_is_as_long_as_it_was() -> None:
    found = flights.read(flights.fetch())
    days = flights.per_day(found)
    assert (len(found), len(days), days["2013-01-01"]) == (336_776, 365, 842)


def test_the_demo_mirrors_and_loads_every_flight(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    running = start(home)
    said, _ = running.communicate()
    assert running.returncode == 0, said
    assert "Every day has as many rows as flights." in said
    assert f"{LIMIT:,}    {LIMIT:,}" in said
    assert processes_of(home) == []


def test_an_interrupt_stops_all_of_the_demo_and_another_demo_nothing(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    running = start(home, "--keep")
    assert running.stdout is not None
    for line in running.stdout:
        if "Start a mirror" in line:
            break
    assert len(processes_of(home)) > 5
    second = start(home)
    said, _ = second.communicate()
    who = f"process {running.pid} (the demo)"
    assert (second.returncode, said) == (1, f"demo: {home} is in use by {who}\n")
    os.kill(running.pid, signal.SIGINT)
    said, _ = running.communicate()
    assert running.returncode == 130, said
    assert processes_of(home) == []


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    running = start(tmp_path)
    said, _ = running.communicate()
    assert running.returncode == 1
    assert said == f"demo: {tmp_path} holds something else than a demo: name another directory\n"
    assert (tmp_path / "letters").read_text() == "dear"
