"""Fault injection for the simulated disk: failing calls, and power loss.

Every call that a real disk might fail goes through `Faults.call`, which records it in the trace: a
test can run a history once, count its calls, and run it again with a fault at each of them.
"""

from __future__ import annotations

import errno
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from kdist.runtime.files import NO_DESCRIPTORS, raise_if_disk, raise_if_lost
from kdist.testing.simulated_names import os_error

_SYNCS = frozenset({"sync", "sync_directory", "sync_filesystem"})
_POWER_LOSS = -1  # in place of an error number


class PowerLoss(BaseException):
    """The machine is off. Not an `Exception`, since no code on that machine could handle it."""


class Call:
    """One call on the disk: a `with` block around its effect, and an entry of the trace."""

    __slots__ = ("_faults", "_spoil", "name", "path")

    def __init__(
        self, faults: Faults, name: str, path: str, spoil: Callable[[], None] | None
    ) -> None:
        self._faults = faults
        self._spoil = spoil
        self.name = name
        self.path = path

    def __repr__(self) -> str:
        return f"{self.name} {self.path}"

    def __enter__(self) -> None:
        code = self._faults.begin(self)
        spoil, self._spoil = self._spoil, None  # else the trace would keep the written data alive
        if code:
            # A sync that the power cuts short loses no page for certain.
            if spoil is not None and not (code == _POWER_LOSS and self.name in _SYNCS):
                spoil()
            self._faults.end()
            self._refuse(os_error(code, self.path))

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self._faults.end()
        if isinstance(error, OSError):
            self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        if error.errno in NO_DESCRIPTORS:
            self._faults.lacks_descriptors = True
        if self.name in _SYNCS:
            raise_if_lost(error, self.path)
        raise_if_disk(error, self.path)
        raise error


@dataclass(slots=True)
class Fault:
    """A fault that is due at some later call."""

    error: int
    when: Callable[[Call], bool]
    calls_until: int  # matching calls that still succeed
    calls_left: float  # matching calls that then fail; infinity: all of them

    def hits(self, call: Call) -> bool:
        """Whether this call fails."""
        if not self.calls_left or not self.when(call):
            return False
        if self.calls_until:
            self.calls_until -= 1
            return False
        self.calls_left -= 1
        return True


class Faults:
    """The trace of a disk's calls, its faults, and its power switch."""

    def __init__(self, rng: random.Random) -> None:
        self.trace: list[Call] = []
        self.is_off = False
        self.lacks_descriptors = False
        self._rng = rng
        self.on_power_loss: Callable[[], None] = lambda: None
        """Called at the very moment: to end the process, so that nothing else of it has effect."""
        self._faults: list[Fault] = []
        self._is_doomed = False

    @property
    def calls(self) -> Counter[str]:
        """How often each method was called."""
        return Counter(call.name for call in self.trace)

    def fail(
        self,
        error: int = errno.EIO,
        *,
        after_calls: int = 0,
        when: Callable[[Call], bool] = lambda _call: True,
        forever: bool = True,
    ) -> None:
        """Let calls fail with the error number `error`.

        Of the calls for which `when` is true, the first `after_calls` succeed and the next one
        fails, with `forever` all later ones too. A failing write may have written a part. A failing
        sync loses the dirty pages, as on Linux: reads see them, but they are not on the disk, and
        no later sync writes them unless they are written again.
        """
        self._faults.append(Fault(error, when, after_calls, math.inf if forever else 1))

    def heal(self) -> None:
        """Remove all faults; also a power loss to come."""
        self._faults.clear()

    def crash_at(self, n: int, when: Callable[[Call], bool] = lambda _call: True) -> None:
        """Cut the power during the `n`-th call from now on for which `when` is true, 1 the next.

        How much of its effect the call has is random: all, nothing, of a write a part. It calls
        `on_power_loss` and raises `PowerLoss`, as do all calls after it.
        """
        assert n > 0, "calls are counted from 1"
        self._faults.insert(0, Fault(_POWER_LOSS, when, n - 1, 1))

    def call(self, name: str, path: str, spoil: Callable[[], None] | None = None) -> Call:
        """A block to put around a call's effect; if the call is to fail, `spoil` runs instead."""
        return Call(self, name, path, spoil)

    def begin(self, call: Call) -> int:
        """Count the call; the error number that it is to fail with, or 0."""
        if self.is_off:
            raise PowerLoss(str(call))
        self.trace.append(call)
        for fault in self._faults:
            if fault.hits(call):
                self._is_doomed = fault.error == _POWER_LOSS
                return 0 if self._is_doomed and self._rng.random() < 0.5 else fault.error
        return 0

    def end(self) -> None:
        """The call has had its effect; lose power before it returns, if `crash_at` says so."""
        if self._is_doomed:
            self.is_off = True
            self.on_power_loss()
            raise PowerLoss(str(self.trace[-1]))
