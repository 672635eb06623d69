"""The demo's processes: what is left of them when it ends, whoever interrupts it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from lab.demo import stage
from lab.demo.stage import Stage

PATIENCE_S = 10  # the kernel ends what is killed when it comes to it
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
    watched = [os.pidfd_open(theirs.wait_for_answer(actor)["child"]) for actor in actors]
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        theirs.clear()
    assert [actor.process.returncode for actor in actors] == [-9, -9]
    for child in watched:
        ended, _, _ = select.select([child], [], [], PATIENCE_S)
        os.close(child)
        assert ended
