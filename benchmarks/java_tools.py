"""Apache Kafka's own performance tools: rates of Java's producer and consumer.

The rates leave out the JVM's start, and the consumer's also the time to join its group.
"""

from __future__ import annotations

import re
import subprocess
import time

from peer.kafka_peer import ensure_jars

TIMEOUT_S = 300
# The heap as in Kafka's tool scripts; their G1 collector would take cores from the brokers.
_JVM = ("-Xmx512m", "-XX:+UseSerialGC")
_PRODUCED = re.compile(r"([\d.]+) records/sec")


def java_produce(address: str, topic: str, messages: int, size: int) -> float:
    """Messages of `size` bytes a second, by a producer with its defaults, so idempotent."""
    options = ("--num-records", str(messages), "--record-size", str(size), "--throughput", "-1")
    said = _run("Producer", topic, *options, "--producer-props", f"bootstrap.servers={address}")
    return float(_PRODUCED.findall(said)[-1])


def java_consume(address: str, topic: str, messages: int) -> float:
    """Messages a second, by a consumer with its defaults, alone in its group."""
    group = f"bench-{time.monotonic_ns()}"
    options = ("--messages", str(messages), "--group", group, "--timeout", "30000")
    said = _run("Consumer", topic, "--bootstrap-server", address, *options)
    return float(said.strip().rpartition(",")[2])


def _run(which: str, topic: str, *options: str) -> str:
    main_class = f"org.apache.kafka.tools.{which}Performance"
    command = ["java", *_JVM, "-cp", f"{ensure_jars()}/*", main_class, "--topic", topic, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout
