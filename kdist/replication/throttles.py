"""Limits of how fast replicas outside the ISR are copied, while partitions move (KIP-73).

Two settings make a limit: a rate of bytes per second, of a broker as leader and as follower, and
which replicas it is for, by topic: "*" or "<partition>:<broker>,..." in the list of the side.

    side        what it does once it is over its rate
    leader      answers the fetches of throttled replicas without records
    follower    leaves partitions that it throttles out of its fetches, and looks again after a
                pause, as others may have used up the rate meanwhile

Invariant: a replica for which the high watermark waits is throttled by neither: producers wait too.
That is one in the ISR, proposed for it, or outside it and keeping up.
Kafka measures the rate over eleven seconds; here what exceeds it at once is waited for after it.
"""

from __future__ import annotations

from functools import lru_cache

from kdist.config.kinds import INT64_MAX
from kdist.config.replication import ReplicationSettings
from kdist.runtime.clock import Clock

EVERYTHING = "*"
_BURST_S = 1.0  # so long a pause is made up for, and no longer one
_NS = 1_000_000_000
_LONGEST_PAUSE_MS = 1_000.0  # the rate may change meanwhile


class ReplicationThrottle:
    """One side's rate. Owner: `Replicas`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rate = INT64_MAX  # bytes per second
        self._balance = 0.0  # bytes that may pass; below 0: that have passed too many
        self._as_of_ns = clock.monotonic_ns()

    def limit(self, rate: int) -> None:
        """Let so many bytes per second pass from here on."""
        if rate != self.rate:
            self.rate, self._balance = rate, 0.0
            self._as_of_ns = self._clock.monotonic_ns()

    def record(self, size: int) -> None:
        """So many bytes have passed."""
        self._refill()
        self._balance -= size

    @property
    def is_exceeded(self) -> bool:
        """Whether nothing more may pass for now."""
        if self.rate == INT64_MAX:
            return False
        self._refill()
        return self._balance <= 0

    @property
    def pause_ms(self) -> float:
        """How long it takes until something may pass again."""
        if not self.rate:
            return _LONGEST_PAUSE_MS
        return min(_LONGEST_PAUSE_MS, (1 - self._balance) * 1000 / self.rate)

    def _refill(self) -> None:
        now_ns = self._clock.monotonic_ns()
        added = self.rate * (now_ns - self._as_of_ns) / _NS
        self._balance = min(self.rate * _BURST_S, self._balance + added)
        self._as_of_ns = now_ns


class ReplicationThrottles:
    """Both sides of one broker. Owner: `Replicas`."""

    def __init__(self, clock: Clock) -> None:
        self.leader = ReplicationThrottle(clock)
        self.follower = ReplicationThrottle(clock)

    def configure(self, settings: ReplicationSettings) -> None:
        """Take the rates that are set now."""
        self.leader.limit(settings.leader_throttled_rate)
        self.follower.limit(settings.follower_throttled_rate)


@lru_cache(maxsize=4096)
def is_listed(replicas: tuple[str, ...], partition: int, broker_id: int) -> bool:
    """Whether a list of a topic's throttled replicas has this one (pure)."""
    return EVERYTHING in replicas or f"{partition}:{broker_id}" in replicas
