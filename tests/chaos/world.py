"""The cluster that is broken: its brokers, three ZooKeeper servers, and what these know of it."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tests.chaos.brokers import Broker
from tests.chaos.clients import MESSAGE_BYTES_MAX, PARTITIONS, QUIET, TOPIC
from tests.chaos.network import ZOOKEEPER, make_switch
from tests.chaos.result import Plan
from tests.chaos.zookeepers import Ensemble

BROKERS, BROKERS_GROWN = 3, 5
OFFSETS = "__consumer_offsets"
POLL_S = 0.1
CREATED_S = 60.0
HEALTHY_S, HEALTHY_GROWING_S = 60.0, 150.0  # under a throttle an emptied disk takes longer


class World:
    """All that faults act upon.

    `brokers` are those that are there now, `hosts` all that ever may be. Whoever has `membership`
    may start and stop brokers: a fault, or who has the cluster grow.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        make_switch()
        self.say = say
        self.ensemble = Ensemble(plan.directory)
        count = BROKERS_GROWN if plan.grows else BROKERS
        self.hosts = [Broker(n, plan, self.ensemble.connect) for n in range(1, count + 1)]
        self.brokers = self.hosts[:BROKERS]
        self.membership = threading.Lock()
        self.topics = [TOPIC, OFFSETS]
        self.healthy_s = HEALTHY_GROWING_S if plan.grows else HEALTHY_S
        self.addresses = ",".join(each.address for each in self.brokers)
        logging.getLogger("kazoo").addHandler(
            logging.NullHandler()
        )  # it is cut off again and again
        self._zookeeper = KazooClient(self.ensemble.connect, timeout=10.0)
        self._leaders: dict[int, int] = {}

    def start(self) -> None:
        """Start everything and make the topic."""
        self.ensemble.start()
        self._zookeeper.start(timeout=30)
        for each in self.brokers:
            each.begin()
        for each in self.brokers:
            each.wait_until_ready()
        self.make_topic(TOPIC, PARTITIONS, {"max.message.bytes": str(MESSAGE_BYTES_MAX)})
        assert self.is_healthy_within(CREATED_S, [TOPIC]), (
            "the topic's replicas did not get in sync"
        )

    def make_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        """Make a topic with a replica on each broker."""
        topic = NewTopic(name, partitions, BROKERS, config=settings)
        admin = AdminClient({**QUIET, "bootstrap.servers": self.addresses})
        end_s = time.monotonic() + CREATED_S
        while True:
            try:
                admin.create_topics([topic], request_timeout=20)[name].result(30)
                return
            except KafkaException as error:  # a broker may not yet know of all the others
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return  # an attempt without an answer made it
                if time.monotonic() > end_s:
                    raise
                time.sleep(POLL_S)

    def close(self) -> None:
        """End everything that runs."""
        self._zookeeper.stop()
        for each in self.hosts:
            if each.is_running:
                each.kill()
        self.ensemble.kill()

    # What ZooKeeper knows

    def leaders(self) -> dict[int, int]:
        """The leader of each partition of the topic, as far as ZooKeeper tells; else the last."""
        states = self._states(TOPIC)
        if states is not None:
            self._leaders = {partition: state["leader"] for partition, state in states.items()}
        return self._leaders

    def controller(self) -> int | None:
        """The controller's id."""
        data = self._get("/controller")
        return None if data is None else int(data["brokerid"])

    def depose(self) -> None:
        """Delete the controller's znode."""
        try:
            self._zookeeper.delete("/controller")
        except KazooException as error:
            self.say(f"the controller stays: {error!r}")

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._zookeeper.get(path)[0]))
        except (KazooException, KazooTimeoutError):
            return None

    def _states(self, topic: str) -> dict[int, dict[str, Any]] | None:
        try:
            numbers = self._zookeeper.get_children(f"/brokers/topics/{topic}/partitions")
        except (KazooException, KazooTimeoutError):
            return None
        states = {
            int(number): self._get(f"/brokers/topics/{topic}/partitions/{number}/state")
            for number in numbers
        }
        return None if None in states.values() else states  # type: ignore[return-value]

    def _replicas(self, topic: str) -> dict[int, set[int]]:
        """Which replicas of each partition are to be in sync: not those that a move is adding."""
        known = self._get(f"/brokers/topics/{topic}") or {}
        replicas: dict[str, list[int]] = known.get("partitions", {})
        adding: dict[str, list[int]] = known.get("adding_replicas", {})
        return {int(n): {*replicas[n]} - {*adding.get(n, ())} for n in replicas}

    def throttled(self) -> list[str]:
        """The topics and brokers that have a throttle for moves."""
        found = []
        for kind in ("topics", "brokers"):
            for name in self._zookeeper.get_children(f"/config/{kind}"):
                settings = (self._get(f"/config/{kind}/{name}") or {}).get("config", {})
                found += [f"{kind} {name}: {each}" for each in settings if "throttled" in each]
        return found

    def ill(self, topics: Sequence[str] | None = None) -> str:
        """Which partitions have no leader or not all replicas in sync; nothing if none."""
        found = []
        for topic in self.topics if topics is None else topics:
            replicas, states = self._replicas(topic), self._states(topic)
            if not replicas or states is None or replicas.keys() != states.keys():
                return f"{topic} is unknown"
            for partition, state in sorted(states.items()):
                if state["leader"] == -1 or not replicas[partition] <= {*state["isr"]}:
                    found.append(f"{topic}-{partition} {state['leader']} of {state['isr']}")
        return ", ".join(found)

    def is_healthy_within(self, limit_s: float, topics: Sequence[str] | None = None) -> bool:
        """Wait until all replicas of all partitions are in sync."""
        end_s = time.monotonic() + limit_s
        while self.ill(topics):
            if time.monotonic() > end_s:
                return False
            time.sleep(POLL_S)
        return True

    def wait_until_it_leads(self, broker: Broker, limit_s: float) -> None:
        """Wait until the broker leads some partition, but no longer than that."""
        end_s = time.monotonic() + limit_s
        while broker.id not in self.leaders().values() and time.monotonic() < end_s:
            time.sleep(POLL_S / 10)

    # Whom a fault hits

    def choose(self, rng: random.Random) -> Broker:
        """Mostly the leader of some partition; else the controller or anybody."""
        leaders = self.leaders()
        what = rng.random()
        wanted = leaders.get(rng.randrange(PARTITIONS)) if what < 0.6 else None
        if 0.6 <= what < 0.8:
            wanted = self.controller()
        anybody = rng.choice(self.brokers)
        return next((each for each in self.brokers if each.id == wanted), anybody)

    def others(self, broker: Broker) -> list[Broker]:
        """All brokers but this."""
        return [each for each in self.brokers if each is not broker]

    def cut_zookeeper(self, broker: Broker) -> None:
        """Nothing passes between the broker and ZooKeeper."""
        broker.link.drop_from([ZOOKEEPER])
        broker.link.drop_to([ZOOKEEPER])
