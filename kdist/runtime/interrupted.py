"""The end of a process that is interrupted while it has nothing to clean up."""

from __future__ import annotations

import os

INTERRUPTED = 130  # 128 and SIGINT, as a shell has it


def end_interrupted(*_: object) -> None:
    """At once, without a word; as a signal's handler too."""
    os.write(2, b"\n")  # the terminal has shown ^C
    os._exit(INTERRUPTED)
