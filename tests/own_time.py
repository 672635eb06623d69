"""How long a process takes by itself: less the time that others kept the cores from it.

A clock on the wall alone counts what else a machine does, and a test beside others fails by it.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path

PATIENCE_S = 60


def kept_waiting_s(process: int) -> float:
    """How long its main thread was ready and had no core. Source: Linux, sched-stats."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9


def ended_after_s(process: subprocess.Popen[bytes]) -> float:
    """Wait until it has ended; how long it took to, by itself."""
    begun_s = _own_s(process.pid)
    watched = os.pidfd_open(process.pid)
    ended, _, _ = select.select([watched], [], [], PATIENCE_S)
    os.close(watched)
    assert ended, f"process {process.pid} does not end"
    return _own_s(process.pid) - begun_s  # nobody has asked for its status yet: it can be read


def _own_s(process: int) -> float:
    return time.monotonic() - kept_waiting_s(process)
