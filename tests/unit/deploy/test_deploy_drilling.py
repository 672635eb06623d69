"""The tools of the drills: a play is killed where it stands, and what brokers run is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kdist.errors import UserError
from lab.lock import held
from tests.deploy import lab_test
from tests.deploy.drilling import Play
from tests.deploy.rolling import Running

OLD, NEW = "1.0-aaaaaaaaaaaa", "2.0-bbbbbbbbbbbb"


@pytest.mark.parametrize(
    ("found", "is_settled"),
    [
        (Running("active", NEW, NEW, NEW), True),
        (Running("inactive", NEW, "", ""), True),
        (Running("failed", OLD, "", ""), True),
        (Running("activating", NEW, NEW, ""), False),
        (Running("active", NEW, OLD, OLD), False),
        (Running("active", NEW, NEW, OLD), False),
    ],
)
def test_a_broker_has_settled_once_process_and_files_agree(
    found: Running, is_settled: bool
) -> None:
    assert found.is_settled is is_settled


def test_a_play_is_killed_at_a_task_and_its_words_are_kept() -> None:
    tasks = "import signal; print('TASK [one]\\nTASK [two]', flush=True); signal.pause()"
    process = subprocess.Popen(
        [sys.executable, "-c", tasks],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    play = Play(process)
    assert play.reaches(r"TASK \[(o\w+)")[1] == "one"
    assert play.kill().failed().words == "TASK [one] TASK [two]"


def test_the_drills_that_are_played_by_make_test_are_there() -> None:
    pages = Path(lab_test.__file__).parent.glob("test_drill_*.py")
    text = "".join(page.read_text() for page in pages)
    assert [name for name in lab_test.QUICK if f"def {name}(" not in text] == []


def test_no_other_run_of_the_labs_test_begins_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def step(trial: lab_test.Trial, name: str, _work: object) -> bool:
        with pytest.raises(UserError, match="in use by"), held(lab_test.lock(), "another test"):
            raise AssertionError(name)
        trial.outcomes.append(lab_test.Outcome(name, 0, ""))
        return False

    monkeypatch.delenv("KEEP", raising=False)
    monkeypatch.setenv("KDIST_LAB_DIR", str(tmp_path / "lab"))
    monkeypatch.setattr(lab_test, "LOCKS", tmp_path)
    monkeypatch.setattr(lab_test, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(lab_test.Trial, "step", step)
    outcomes = lab_test.run_alone(is_quick=True, only_racks=False).outcomes
    assert [each.name for each in outcomes] == ["what an earlier run left", "hosts", "all removed"]
    with held(lab_test.lock(), "another test"):
        pass
