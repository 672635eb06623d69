"""Pacing: connections within a host have none.

Where BBR is the kernel's default, it paces what is sent by timers. Within a host nothing is
congested, and the timers alone are a third or more of what it takes to send a fetched MiB. Whatever
BBR has once had is paced for ever, by its successors too: Linux's `tcp_pacing_check`. So all begin
with another, and those that leave the host get the default when they are connected.
"""

from __future__ import annotations

import socket
from contextlib import suppress

UNPACED = b"reno"  # which every kernel has
_NAME_BYTES_MAX = 16


def begin_unpaced(fresh: socket.socket) -> None:
    """Of a socket that will connect, or listen for those that inherit it from it."""
    _choose(fresh, UNPACED)


def pace(connected: socket.socket) -> None:
    """Of one that leaves the host: give it the kernel's default.

    What its route says (`ip route ... congctl`) has come before either, and stays.
    """
    if congestion_control(connected) == UNPACED:
        with suppress(OSError), socket.socket() as fresh:  # there may be no descriptor for it
            _choose(connected, congestion_control(fresh))


def congestion_control(of: socket.socket) -> bytes:
    """The name of its algorithm."""
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES_MAX).rstrip(b"\0")


def _choose(of: socket.socket, algorithm: bytes) -> None:
    with suppress(OSError):  # a host may not allow it
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
