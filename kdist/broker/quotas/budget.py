"""A budget: at most so much a second, and a second's worth at once (pure).

    in any t seconds a client gets   rate * (t + burst_s)   and what it had on the way when it ended

A budget is one number, the time at which all that was used is paid for: what is used moves it by
amount / rate. If it is in the future, the client has to pause until then. If it is in the past, the
client has credit, but never for more than `burst_s` seconds. So a budget with full credit is like a
new one, and may be forgotten.

Kafka averages over `quota.window.num` windows instead: there a client may use ten seconds' worth at
once, is then told to pause for about as long, and may burst again when that window is forgotten. At
ten times its quota it gets 3% to 10% above it here in 30 seconds, and 10% to 33% there.
"""

from __future__ import annotations

_DEBT_S_MAX = 3600.0  # what a client owes beyond this is forgiven


class Budget:
    """Owner: `Quotas`. Times are seconds of one monotonic clock."""

    __slots__ = ("_burst_s", "_paid_s", "_rate")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        assert rate > 0, "a quota is above 0"
        self._rate = rate
        self._burst_s = burst_s
        self._paid_s = now_s - burst_s

    @property
    def at_once(self) -> float:
        """The most that full credit is worth."""
        return self._rate * self._burst_s

    def use(self, amount: float, now_s: float) -> float:
        """Use that much; returns for how many seconds the client has to pause now."""
        paid_s = max(self._paid_s, now_s - self._burst_s) + amount / self._rate
        self._paid_s = min(paid_s, now_s + _DEBT_S_MAX)
        return self.debt_s(now_s)

    def debt_s(self, now_s: float) -> float:
        """For how many seconds the client has to pause; 0 if it has credit."""
        return max(0.0, self._paid_s - now_s)

    def is_full(self, now_s: float) -> bool:
        """Whether it has all the credit there can be."""
        return self._paid_s <= now_s - self._burst_s

    def change_rate(self, rate: float, now_s: float) -> None:
        """Go on at another rate; what is owed stays owed."""
        debt_s = self.debt_s(now_s)
        if debt_s:
            self._paid_s = min(now_s + debt_s * self._rate / rate, now_s + _DEBT_S_MAX)
        self._rate = rate
