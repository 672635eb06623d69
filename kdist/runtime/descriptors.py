"""How many files and connections this process may have open at a time."""

from __future__ import annotations

import resource


def raise_limit() -> int:
    """Take as many descriptors as the system gives without asking; how many that is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
