"""No callback of an event loop may take long: a unit test in which one does fails.

A broker does all its work on one thread: while a callback runs, nothing else does. What counts is
the CPU time of the thread, without that of garbage collections (a test's heap is no broker's) and
of callbacks within the callback (a loop may run several in one). A slow machine gets more of it.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

# Of tests, with reasons. This list may only shrink: an exception that is not needed fails its test.
_PEER = "its peer, in the same process, sends and receives megabytes in a callback"
EXCEPTIONS = {
    **dict.fromkeys(
        (
            "network/test_network_contract.py"
            f"::test_a_connection_whose_peer_reads_nothing_is_held_and_resumes_later[{world}]"
            for world in ("real", "tick loop", "simulated", "TLS", "simulated TLS")
        ),
        _PEER,
    ),
    **dict.fromkeys(
        (
            "mirror/test_mirror_flow.py"
            f"::test_many_partitions_begin_and_show_their_lag_over_a_slow_link[{partitions}]"
            for partitions in (300, 2000)
        ),
        "a mirror takes in all partitions' first answers at once",
    ),
}

LIMIT_S = 0.02
_USED_S = LIMIT_S / 10  # an exception for a test without any callback this long is not needed
_WORK_S = 0.0008  # what `_work` takes on the machine that the exceptions were measured on


class Slow(NamedTuple):
    """A callback that took longer than `_USED_S`."""

    seconds: float
    callback: str


class _Thread(threading.local):
    """What the present callback of this thread has not spent itself."""

    def __init__(self) -> None:
        self.elsewhere_s = 0.0
        self.collecting_since_s = 0.0


_thread = _Thread()
slow: list[Slow] = []
_run: Callable[[asyncio.Handle], None] = asyncio.Handle._run


def _measured_run(handle: asyncio.Handle) -> None:
    outer_s, _thread.elsewhere_s = _thread.elsewhere_s, 0.0
    callback, since_s = handle._callback, time.thread_time()  # type: ignore[attr-defined]
    try:
        _run(handle)
    finally:
        took_s = time.thread_time() - since_s
        if took_s - _thread.elsewhere_s > _USED_S:
            slow.append(Slow(took_s - _thread.elsewhere_s, repr(callback)))
        _thread.elsewhere_s = outer_s + took_s


def _collecting(phase: str, _info: dict[str, int]) -> None:
    now_s = time.thread_time()
    if phase == "start":
        _thread.collecting_since_s = now_s
    else:
        _thread.elsewhere_s += now_s - _thread.collecting_since_s


def install() -> None:
    """Measure every callback from now on."""
    asyncio.Handle._run = _measured_run  # type: ignore[method-assign]
    gc.callbacks.append(_collecting)


def slowness() -> float:
    """How much longer than the reference this machine takes now, for the same work."""
    since_s = time.thread_time()
    _work()
    return (time.thread_time() - since_s) / _WORK_S


def _work() -> int:
    """The kind of work that callbacks do."""
    found: dict[str, Any] = {}
    for number in range(10_000):
        found[f"{number % 1000}"] = (number, [number])
    return len(found)


def judge(test: str, found: list[Slow], slowness: Callable[[], float] = slowness) -> str:
    """What is wrong with the callbacks of a test; an empty string if nothing is."""
    if test in EXCEPTIONS:
        return "" if found else f"an exception for {test} is not needed any more"
    longest = max(found, default=Slow(0.0, ""))
    if longest.seconds <= LIMIT_S or longest.seconds <= LIMIT_S * max(slowness() for _ in range(5)):
        return ""
    return f"a callback took {longest.seconds * 1000:.0f} ms of CPU time: {longest.callback}"
