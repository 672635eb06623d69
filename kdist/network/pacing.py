"""Pacing: connections within a host are not paced.

Where BBR is the kernel's default congestion control, it paces sends by timers. Within a host
nothing is congested, and the timers alone are a third or more of what it costs to send a fetched
MiB. A socket that BBR has once controlled stays paced even after a change of algorithm (Linux's
`tcp_pacing_check`). So every socket begins with another algorithm, and those whose peer is on
another host get the default once they are connected.
"""

from __future__ import annotations

import socket
from contextlib import suppress

UNPACED = b"reno"  # every kernel has it
_NAME_BYTES_MAX = 16


def begin_unpaced(fresh: socket.socket) -> None:
    """Choose an unpaced algorithm for a new socket; accepted sockets inherit it from a listener."""
    _choose(fresh, UNPACED)


def pace(connected: socket.socket) -> None:
    """Give a connection to another host the kernel's default algorithm.

    One that its route chose (`ip route ... congctl`) has replaced `UNPACED` already, and stays.
    """
    if congestion_control(connected) == UNPACED:
        with suppress(OSError), socket.socket() as fresh:  # descriptors may have run out
            _choose(connected, congestion_control(fresh))


def congestion_control(of: socket.socket) -> bytes:
    """The name of the socket's congestion control algorithm."""
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES_MAX).rstrip(b"\0")


def _choose(of: socket.socket, algorithm: bytes) -> None:
    with suppress(OSError):  # the host may not allow this algorithm
        of.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
