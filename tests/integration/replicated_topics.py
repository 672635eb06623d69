"""What ZooKeeper and the disks have of a topic's replicas, whoever the brokers are.

The states are read from the znodes: a broker's metadata may be behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError


class State(NamedTuple):
    """Who leads a partition, and who is in sync."""

    leader: int
    isr: frozenset[int]


@contextmanager
def znodes_of(connect: str) -> Iterator[ZnodesOfTopics]:
    """The znodes of a cluster, given its connect string."""
    client = KazooClient(connect)
    client.start()
    try:
        yield ZnodesOfTopics(client)
    finally:
        client.stop()
        client.close()


class ZnodesOfTopics:
    """Looks into ZooKeeper as nobody of the cluster."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    def states(self, topic: str) -> list[State]:
        """Those of a topic's partitions, in order."""
        path = f"/brokers/topics/{topic}/partitions"
        numbers = sorted(map(int, self._client.get_children(path)))
        found = [self._json(f"{path}/{number}/state") for number in numbers]
        return [State(each["leader"], frozenset(each["isr"])) for each in found]

    def replicas(self, topic: str) -> list[list[int]]:
        """Those that a topic's partitions are assigned, in order."""
        found = self._json(f"/brokers/topics/{topic}")["partitions"]
        return [found[number] for number in sorted(found, key=int)]

    def are_in_sync(self, topic: str, replicas: int) -> bool:
        """Whether each partition has so many replicas in sync."""
        return all(len(each.isr) == replicas for each in self.states(topic))

    def is_moved(self, topic: str) -> bool:
        """Whether some of its replicas are being moved to other brokers."""
        found = self._json(f"/brokers/topics/{topic}")
        return bool(found["adding_replicas"] or found["removing_replicas"])

    def exists(self, topic: str) -> bool:
        return self._client.exists(f"/brokers/topics/{topic}") is not None

    def is_registered(self, broker_id: int) -> bool:
        return self._client.exists(f"/brokers/ids/{broker_id}") is not None

    def controller(self) -> int | None:
        """The controller's broker id, if there is one."""
        try:
            return int(self._json("/controller")["brokerid"])
        except NoNodeError:
            return None

    def end_controller(self) -> None:
        """Have another controller elected, which may be the same broker."""
        try:
            self._client.delete("/controller")
        except NoNodeError:
            pass  # there is none just now

    def _json(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._client.get(path)[0])
        return found


def log_bytes(directory: Path) -> bytes:
    """A replica's batches. Where its segments begin is its own affair."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def segments(directories: Iterable[Path]) -> list[Path]:
    """The segments of replicas that are not empty."""
    found = [path for each in directories for path in sorted(each.glob("*.log"))]
    return [path for path in found if path.stat().st_size]
