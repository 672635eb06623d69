"""In some seeds consumers read from the nearest replica (KIP-392): a host is a rack then.

What is drawn is a stream of its own, so that it does not shift what others draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdist.broker.handlers import fetch
from kdist.config.replication import RACK_AWARE
from kdist.replication.partition import Partition
from tests.simulator.bug import Bug, Planted
from tests.simulator.cluster import Cluster

_SHARE = 0.4  # of seeds


class Nearest:
    """Owner: the history."""

    def __init__(self, cluster: Cluster) -> None:
        self._rng = cluster.stream("nearest")
        self._racks = [""]
        if self._rng.random() < _SHARE:
            cluster.racks = cluster.hosts
            cluster.settings |= {"replica.selector.class": RACK_AWARE}
            self._racks += sorted({*cluster.hosts.values()})

    def draw_rack(self) -> str:
        """That of another consumer; some say none."""
        return self._rng.choice(self._racks)


def _followers_to_the_end(visible_end: Callable[..., int]) -> Callable[..., int]:
    def to_the_end(self: Partition, *given: Any) -> int:
        return visible_end(self, *given) if self.is_leader else self.log.end_offset

    return to_the_end


PLANTED_IN_FOLLOWERS: dict[str, Planted] = {
    "followers show what is not committed": (
        Bug(Partition, "visible_end", _followers_to_the_end),
        Bug(fetch, "is_awaited", lambda _: lambda *_given: False),
    ),
}
