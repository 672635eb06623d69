"""The states of a connection, and which may follow which (pure).

    state       requests received                         what it leaves for
    OPEN        are handed over at once                   too many answers wait, or the client has
                                                          to pause: PAUSED; one must wait for an
                                                          earlier one: MUTED
    PAUSED      stay unread, or in the connection's own   the peer took answers, and its client's
                buffer                                    pause is over: OPEN
    MUTED       as in PAUSED, until the earlier one is    it is done: PAUSED, and from there OPEN
                done
    FINISHING   are dropped; earlier ones are answered    all answers are sent, or time is up:
                                                          CLOSED
    CLOSED      are dropped, and so are answers           never

Any state but CLOSED leaves for FINISHING (the peer sends no more, or not the protocol, or the
broker stops) and for CLOSED. A client's connection is OPEN or CLOSED.

The rest is no state: whether the peer takes answers (`Sender.is_blocked`), whether the tick is to
write (`Connection._will_write`), and whether anything has moved lately (`Connection.is_active`).
"""

from __future__ import annotations

import enum


class ConnectionState(enum.IntEnum):
    """Integers, since those hash without a call of Python code."""

    OPEN = 0
    PAUSED = 1
    MUTED = 2
    FINISHING = 3
    CLOSED = 4


OPEN, PAUSED, MUTED, FINISHING, CLOSED = ConnectionState

FOLLOWERS: dict[ConnectionState, tuple[ConnectionState, ...]] = {
    OPEN: (PAUSED, MUTED, FINISHING, CLOSED),
    PAUSED: (OPEN, FINISHING, CLOSED),
    MUTED: (PAUSED, FINISHING, CLOSED),
    FINISHING: (CLOSED,),
    CLOSED: (),
}
