"""Standard input, output and error of a process that was started without some of them.

The next file or connection that it opens would take such a stream's number, and whoever writes to
"standard output" would write into that: into a segment, at the worst.
"""

from __future__ import annotations

import os
import sys


def fill_standard_streams() -> None:
    """Have those that are closed read nothing and write nowhere."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:  # the lowest that is free is given
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    # Python has None for them, which no caller of `sys.stdin.buffer` expects.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
