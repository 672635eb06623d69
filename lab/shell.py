"""Runs this machine's programs, and turns a failure into a one-sentence UserError."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kdist.errors import UserError

Command = Sequence[str | Path]

POLL_S = 0.05


def run(*command: str | Path, given: str | None = None) -> str:
    """The program's output; UserError with its last line if it fails. `given` is its input."""
    try:
        done = subprocess.run(
            command,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(f"there is no program {command[0]} here") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise UserError(f"`{' '.join(map(str, command))}` failed: {words[-1]}")
    return done.stdout


def run_all(commands: Iterable[Command]) -> None:
    """Run the commands in order; stop at the first that fails, with UserError."""
    for command in commands:
        run(*command)


def succeeds(*command: str | Path) -> bool:
    """Whether the program exits with 0; its output is discarded."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Return once the condition holds; on timeout, UserError says `what` was waited for."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise UserError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(POLL_S)
