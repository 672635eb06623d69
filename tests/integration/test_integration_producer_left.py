"""Programs that end without closing their producer: what arrives all the same, and what is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from standalone_process import Standalone, standalone

from kdist.client.consumer.consumer import Consumer
from kdist.client.producer import at_exit
from kdist.model import TopicPartition

PROGRAM = """
import os, sys, threading
from kdist import Producer
producer = Producer(bootstrap_servers="localhost:{port}", {settings})
for number in range({count}):
    producer.send({topic!r}, b"%d" % number)
{last}
"""
FORK = """
if not (child := os.fork()):
    sys.exit()  # as the parent ends: by way of all that is registered for it
assert os.waitpid(child, 0)[1] == 0
"""
STOPPED = """
import signal
producer.flush()
os.kill({broker}, signal.SIGSTOP)
producer.send("held", b"not taken")
producer.send("held", b"nor this")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("left")) as run:
        yield run


def run(port: int, topic: str, count: int, settings: str = "", last: str = "") -> tuple[str, float]:
    """What the program says, and how long it takes."""
    program = PROGRAM.format(port=port, topic=topic, count=count, settings=settings, last=last)
    begin_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, time.monotonic() - begin_s


def values(cluster: Standalone, topic: str) -> list[bytes]:
    with Consumer(f"127.0.0.1:{cluster.port}") as consumer:
        key = TopicPartition(topic, 0)
        consumer.assign([key])
        consumer.seek_to_beginning()
        end, found = consumer.end_offsets([key])[key], list[bytes]()
        while len(found) < end:
            found += [each.value for each in consumer.poll(10)]
        return found


@pytest.mark.parametrize(
    ("settings", "count"),
    [("", 1), ("", 50_000), ("linger_ms=60_000", 8), ("acks='0'", 9), ("acks='1'", 10)],
)
def test_what_was_sent_arrives(cluster: Standalone, settings: str, count: int) -> None:
    topic = f"left-{count}"
    assert run(cluster.port, topic, count, settings)[0] == ""
    assert values(cluster, topic) == [b"%d" % number for number in range(count)]


def test_a_forked_process_sends_nothing_of_its_parents(cluster: Standalone) -> None:
    assert run(cluster.port, "forked", 9, "linger_ms=60_000", FORK)[0] == ""
    assert values(cluster, "forked") == [b"%d" % number for number in range(9)]


def test_what_a_broker_that_hangs_does_not_take_is_told_and_the_program_ends(
    cluster: Standalone,
) -> None:
    broker = next(pid for name, pid in cluster.pids.items() if name != "zookeeper")
    try:
        said, took_s = run(cluster.port, "held", 5, last=STOPPED.format(broker=broker))
    finally:
        os.kill(broker, signal.SIGCONT)
    assert said == (
        "kdist-producer was not closed: 2 of its records were not acknowledged, and may be lost; "
        "use `with`, or close it\n"
    )
    assert took_s < at_exit.FLUSH_S + 15
