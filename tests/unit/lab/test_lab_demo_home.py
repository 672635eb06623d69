"""The demo's directory and processes: nobody else's is emptied, and none is left."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from kdist.errors import UserError
from lab.demo import stage
from lab.demo.__main__ import _emptied
from lab.demo.stage import Stage
from lab.place import ROOT

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


def test_what_an_earlier_demo_left_is_removed_and_a_running_ones_is_not(tmp_path: Path) -> None:
    home = tmp_path / "new" / "demo"
    with _emptied(home):
        (home / "logs").mkdir()
        (home / "letter").touch()
        with pytest.raises(UserError, match=r"is in use by process \d+"), _emptied(home):
            pass
        assert (home / "logs").is_dir()
    with _emptied(home):
        assert len(list(home.iterdir())) == 1  # the mark


def test_a_directory_that_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "lab.demo", "--home", home],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, f"demo: {home}: Not a directory\n")


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
