"""Opening standard streams that the process was started without.

The next file or connection opened would get the missing stream's descriptor number, and writes to
"standard output" would go there: into a segment, at worst.
"""

from __future__ import annotations

import os
import sys


def fill_standard_streams() -> None:
    """Open those that are closed on /dev/null."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:  # `open` returns the lowest free number
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    # Python sets them to None, which users of `sys.stdin.buffer` do not expect.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
