"""Hostile peers against a live broker: `python tests/integration/fire_fuzz.py --seconds 300`.

Beside them runs a well-behaved client, which must not notice. It prints what was done, how long the
client waited at most, and the broker's memory before and after. A failure names the seed.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.fire_attacks import ATTACKS, Arena, SlowSender
from tests.integration.fire_load import QUIET
from tests.integration.fire_requests import TOPIC
from tests.integration.zookeeper_server import PATIENT_TICK_MS, zookeeper_host

WARM_UP_S = 3.0
SLOW_SENDERS = 20
WELL_BEHAVED = "well-behaved"
BIG_RECORDS, BIG_BYTES = 64, 16_000  # for fetches whose answers nobody takes
SETTINGS = {
    "auto_create_topics_enable": "false",
    "group_max_session_timeout_ms": "60000",
}


class Report(NamedTuple):
    """What a run did. Memory is the broker's resident set in MiB, `peak` since it started."""

    attacks: Counter[str]
    flipped: int
    flips_in_all: int
    slow_answered: int
    exchanged: int
    slowest_ms: float
    before_mib: float
    after_mib: float
    peak_mib: float

    def text(self) -> str:
        """For people."""
        attacks = ", ".join(f"{count} {name}" for name, count in self.attacks.most_common())
        return (
            f"{attacks}; {self.flipped} of {self.flips_in_all} flips; "
            f"{self.slow_answered} slow senders answered\n"
            f"the well-behaved client exchanged {self.exchanged} records, "
            f"the slowest in {self.slowest_ms:.0f} ms\n"
            f"memory: {self.before_mib:.0f} MiB before, {self.after_mib:.0f} MiB after, "
            f"{self.peak_mib:.0f} MiB at most\n"
        )


class WellBehaved:
    """Produces to a topic of its own and reads it as a group; any failure of either is kept."""

    def __init__(self, address: str) -> None:
        self.failed: list[str] = []
        self.sent = self.read = 0
        self.slowest_ms = 0.0
        told = {**QUIET, "bootstrap.servers": address, "error_cb": self._told}
        self._producer = Producer({**told, "linger.ms": 1, "enable.idempotence": True})
        group = {"group.id": WELL_BEHAVED, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({**told, **group})
        self._consumer.subscribe([WELL_BEHAVED])
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        """Read what was sent to the end."""
        self._is_stopping.set()
        self._thread.join()
        self._producer.flush(20)
        settled(self._has_read_all)

    def stop(self) -> None:
        """Leave, whatever is left."""
        self._is_stopping.set()
        self._thread.join()
        self._producer.purge()
        self._consumer.close()

    def _has_read_all(self) -> bool:
        self._read()
        return self.read >= self.sent

    def _told(self, error: KafkaError) -> None:
        self.failed.append(str(error))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        self.sent += 1
        self.slowest_ms = max(self.slowest_ms, (message.latency() or 0) * 1000)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            self._producer.produce(WELL_BEHAVED, b"x" * 100, on_delivery=self._delivered)
            self._producer.poll(0)
            self._read()

    def _read(self) -> None:
        for message in self._consumer.consume(100, 0.01):
            if message.error() is not None:
                self.failed.append(str(message.error()))
            self.read += 1


def run(broker: BrokerProcess, seconds: float, seed: int) -> Report:
    """Attack for so long. AssertionError with the seed if anything is amiss."""
    prepare(broker)
    arena = Arena(broker.port, seed)
    attack_for(arena, WARM_UP_S)
    arena.let_go()
    before_mib = memory_mib(broker, "VmRSS")
    client = WellBehaved(broker.address)
    senders = [SlowSender(broker.port) for _ in range(SLOW_SENDERS)]
    try:
        attacks = attack_for(arena, seconds, senders)
        for sender in senders:
            sender.step(is_last=True)
        client.finish()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}\n{broker.text[-3000:]}") from error
    finally:
        arena.let_go()
        client.stop()
    assert client.read == client.sent > 0
    assert client.failed == [], f"seed {seed}: the well-behaved client was told {client.failed[:5]}"
    return Report(
        attacks,
        arena.flipped,
        arena.flips_in_all,
        sum(sender.is_answered for sender in senders),
        client.read,
        client.slowest_ms,
        before_mib,
        memory_mib(broker, "VmRSS"),
        memory_mib(broker, "VmHWM"),
    )


def prepare(broker: BrokerProcess) -> None:
    """Topics for the good and the bad."""
    admin = AdminClient({**QUIET, "bootstrap.servers": broker.address})
    names = [NewTopic(TOPIC, 1, 1), NewTopic(WELL_BEHAVED, 3, 1)]
    for made in admin.create_topics(names).values():
        made.result(20)
    producer = Producer({**QUIET, "bootstrap.servers": broker.address})
    for _ in range(BIG_RECORDS):
        producer.produce(TOPIC, bytes(BIG_BYTES))
    assert producer.flush(20) == 0


def attack_for(arena: Arena, seconds: float, senders: Sequence[SlowSender] = ()) -> Counter[str]:
    """Attacks in random order; how many of each."""
    done: Counter[str] = Counter()
    weights = [each.weight for each in ATTACKS]
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        [chosen] = arena.rng.choices(ATTACKS, weights)
        chosen.attack(arena)
        done[chosen.attack.__name__] += 1
        for sender in senders:
            sender.step()
    return done


def memory_mib(broker: BrokerProcess, row: str) -> float:
    """A row of the process's status, as the kernel counts it."""
    process = broker._process
    assert process is not None
    assert process.poll() is None, broker.text[-2000:]
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(f"{row}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {row}")


@contextmanager
def target(directory: pathlib.Path) -> Iterator[BrokerProcess]:
    """A broker of its own to be attacked."""
    (directory / "zookeeper").mkdir()
    with (
        zookeeper_host(directory / "zookeeper", PATIENT_TICK_MS) as host,
        broker_processes(1, directory, host.settings.address, **SETTINGS) as (broker,),
    ):
        yield broker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as directory, target(pathlib.Path(directory)) as broker:
        sys.stdout.write(run(broker, options.seconds, options.seed).text())


if __name__ == "__main__":
    main()
