"""The demo's directory: emptied for one demo at a time, and never one of somebody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kdist.errors import UserError
from lab.demo.__main__ import _emptied
from lab.place import ROOT


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
