"""The shell commands of a page of documentation, run as they stand, and what the page says of them.

A `text` block right below an `sh` block has lines of its output, in which `…` is any text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

TIMEOUT_S = 120


def blocks(page: Path) -> list[tuple[str, str]]:
    """Each command of the page with the output that stands below it, if any does."""
    return blocks_of(page.read_text())


def blocks_of(text: str) -> list[tuple[str, str]]:
    """The same of a part of a page."""
    found = re.findall(r"```sh\n(.*?)\n```\n(?:\n```text\n(.*?)\n```\n)?", text, re.DOTALL)
    return [(command, output) for command, output in found]


def shows(output: str, line: str) -> bool:
    """Whether a line of the output is as the page has it, where `…` is any text."""
    pattern = re.sub(r"\s+", " ", line.strip().replace("[", "[[]").replace("…", "*"))
    lines = (re.sub(r"\s+", " ", each.strip()) for each in output.splitlines())
    return any(fnmatchcase(text, pattern) for each in lines for text in (each, f"{each} "))


def environment(directory: Path, port: int) -> dict[str, str]:
    """For commands that find `kdist` by its name, and a cluster on this port."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    kdist = Path(sys.executable).parent / "kdist"
    (bin_directory / "kdist").symlink_to(kdist if kdist.exists() else shutil.which("kdist") or "")
    path = f"{bin_directory}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "KDIST_BROKER": f"127.0.0.1:{port}"}


def run_block(command: str, expected: str, directory: Path, around: dict[str, str]) -> str:
    """What a block printed, which must succeed and print what the page says."""
    done = subprocess.run(
        f"set -e\n{command}",
        shell=True,
        cwd=directory,
        env=around,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    missing = [line for line in expected.splitlines() if not shows(done.stdout, line)]
    assert missing == [], done.stdout
    return done.stdout
