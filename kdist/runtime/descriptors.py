"""The limit on this process's file descriptors: its open files and connections."""

from __future__ import annotations

import resource


def raise_limit() -> int:
    """Raise the soft limit to the hard one, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
