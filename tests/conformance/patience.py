"""Timeouts for clients, scaled by the machine's load: other work may run beside the suites."""

from __future__ import annotations

import os


def scaled(idle_s: float) -> float:
    """`idle_s`, a timeout that suffices on an idle machine, scaled by the load; never less."""
    return idle_s * factor()


def factor() -> float:
    """The load average per core, but at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
