"""How long to wait for a client: its suites share their machine with whatever else runs on it."""

from __future__ import annotations

import os


def scaled(idle_s: float) -> float:
    """`idle_s`, which is enough on an idle machine, as the load is now; never less."""
    return idle_s * factor()


def factor() -> float:
    """The load per core, or 1 while no one has to wait for a core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
