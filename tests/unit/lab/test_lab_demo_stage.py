"""The demo's processes: what is left of them when it ends, whoever interrupts it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.demo import stage
from lab.demo.stage import Stage

PATIENCE_S = 10
STUBBORN = """
import json, os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print(json.dumps({"child": child}), flush=True)
else:
    os.setsid()
while True:
    signal.pause()
"""


def test_an_interrupt_while_the_demo_stops_ends_what_is_left_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "KDIST", (sys.executable, "-c", STUBBORN))
    interrupts = iter(range(3))
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if next(interrupts, None) is not None:
            raise KeyboardInterrupt
        return wait(process, timeout)

    theirs = Stage(tmp_path)
    actors = [theirs.start(name) for name in ("one", "two")]
    children = [theirs.wait_for_answer(actor)["child"] for actor in actors]
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        theirs.clear()
    assert [actor.process.returncode for actor in actors] == [-9, -9]
    deadline = time.monotonic() + PATIENCE_S  # the kernel ends them when it comes to it
    while (
        left := [child for child in children if is_running(child)]
    ) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


def is_running(process: int) -> bool:
    """Whether it does something: one that ended may wait for whoever adopted it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
