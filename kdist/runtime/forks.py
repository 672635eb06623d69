"""Notifying objects that they were copied by a fork.

A forked process has its parent's memory but only one of its threads. So whatever waits there for
another thread, or for a lock that one held, would wait forever.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """An object that must know when it is a copy in a forked process."""

    def forked(self) -> None:
        """Called in the new process before any other code runs there. Must not take a lock."""


_watchers: WeakSet[Forked] = WeakSet()


def tell_when_forked(watcher: Forked) -> None:
    """Call `watcher.forked` in every process forked from now on, as long as `watcher` lives."""
    _watchers.add(watcher)


def _tell() -> None:
    for watcher in list(_watchers):
        watcher.forked()


os.register_at_fork(after_in_child=_tell)
