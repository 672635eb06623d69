"""The states of a connection, which may follow which, and why one is held (pure).

    state       requests received                         what it leaves for
    OPEN        are handed over at once                   there is a reason to hold it: HELD
    HELD        stay unread, or in the connection's own   no reason is left: OPEN
                buffer
    FINISHING   are dropped; earlier ones are answered    all answers are sent, or time is up:
                                                          CLOSED
    CLOSED      are dropped, and so are answers           never

Either of the first two leaves for FINISHING (the peer sends no more, or not the protocol, or the
broker stops) and for CLOSED. A client's connection is OPEN or CLOSED.

The reasons come and go independently of each other:

    reason      begins when                               ends when
    LIMIT       too many requests are in flight, or too   the peer took answers
                many bytes of answers wait
    CHANGE      a request is under way whose effect all   it is answered
                later ones must see, or whose answer
                takes long to make
    PRODUCES    one comes that must see produces done     none is under way
                that are under way
    WORK        one comes that needs a task, while one    that one is answered
                like it is under way
    DECODING    a large one came, which is decoded in     it is decoded, and handled
                steps
    QUOTA       its client has used up a quota            the client's pause is over
    TURN        its requests have kept the loop for long  the loop's next turn

The rest is no state: whether the peer takes answers (`Sender.is_blocked`), whether the tick is to
write (`Connection._will_write`), and whether anything has moved lately (`Connection.is_active`).
"""

from __future__ import annotations

import enum


class ConnectionState(enum.IntEnum):
    """Integers, since those hash without a call of Python code."""

    OPEN = 0
    HELD = 1
    FINISHING = 2
    CLOSED = 3


OPEN, HELD, FINISHING, CLOSED = ConnectionState

FOLLOWERS: dict[ConnectionState, tuple[ConnectionState, ...]] = {
    OPEN: (HELD, FINISHING, CLOSED),
    HELD: (OPEN, FINISHING, CLOSED),
    FINISHING: (CLOSED,),
    CLOSED: (),
}


class Reason(enum.IntEnum):
    """Why a connection is HELD."""

    LIMIT = 0
    CHANGE = 1
    PRODUCES = 2
    WORK = 3
    DECODING = 4
    QUOTA = 5
    TURN = 6


LIMIT, CHANGE, PRODUCES, WORK, DECODING, QUOTA, TURN = Reason
