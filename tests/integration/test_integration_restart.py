"""A broker that stopped cleanly serves a thousand partitions again in seconds.

Measured from the start of its process, interpreter and ZooKeeper session included: until it says
that it is ready, and until a client is told a leader for each partition. How long others kept the
cores from it is left out.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.own_time import kept_waiting_s

TOPICS, PARTITIONS = 10, 100
RESTARTS = 3
ALLOWED_S = 6.0  # two are asked for; a machine that tests share gets more


def test_a_thousand_partitions_are_served_soon_after_a_clean_restart(
    tmp_path: Path, connect: str
) -> None:
    with broker_processes(1, tmp_path, connect) as (broker,):
        fill(broker)
        measured = [restart(broker) for _ in range(RESTARTS)]
    ready_s, served_s = map(statistics.median, zip(*measured, strict=True))
    sys.stdout.write(
        f"{TOPICS * PARTITIONS} partitions: ready in {ready_s:.2f} s, all led in {served_s:.2f} s "
        f"(medians of {RESTARTS})\n"
    )
    assert served_s < ALLOWED_S


def fill(broker: BrokerProcess) -> None:
    """A record in each partition."""
    names = [f"topic-{n}" for n in range(TOPICS)]
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        made.result(30)
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.address})
    for name in names:
        for partition in range(PARTITIONS):
            producer.produce(
                name, b"x", partition=partition, on_delivery=lambda e, _: e and failed.append(e)
            )
    assert producer.flush(60) == 0
    assert failed == []


def restart(broker: BrokerProcess) -> tuple[float, float]:
    """Seconds until it is ready, and until all partitions have their leader."""
    assert broker.stop() == 0
    begun_s = time.monotonic()
    broker.start()
    ready_s = time.monotonic() - kept_waiting_s(broker.process.pid) - begun_s
    assert "were scanned" not in broker.text
    client = AdminClient({"bootstrap.servers": broker.address})
    settled(lambda: led_partitions(client) == TOPICS * PARTITIONS)
    return ready_s, time.monotonic() - kept_waiting_s(broker.process.pid) - begun_s


def led_partitions(client: AdminClient) -> int:
    """How many partitions have a leader, as the broker tells it."""
    topics = client.list_topics(timeout=10).topics.values()
    return sum(p.leader != -1 for topic in topics for p in topic.partitions.values())
