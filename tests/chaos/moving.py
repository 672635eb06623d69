"""Grows the cluster and shrinks it while it is broken, with `kdist reassign` as its users do.

Brokers join and the disks are leveled; then these brokers are drained, and leave. A plan is made,
carried out and verified, each command again until it exits with 0. Meanwhile it is interrupted or
killed at times and gone on with, cancelled, or reversed and made anew.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from tests.chaos.brokers import Broker
from tests.chaos.clients import ENDED_S, QUIET, TOPIC
from tests.chaos.history import now_s
from tests.chaos.pace import Span
from tests.chaos.replicas import live_replicas
from tests.chaos.result import Plan
from tests.chaos.world import BROKERS, OFFSETS, World

BULK, BULK_PARTITIONS = "bulk", 12  # what moves take time for
BULK_BYTES, BULK_SHORT_BYTES = 72_000_000, 6_000_000
BULK_RECORD_BYTES = 10_000
THROTTLE_MIB = 1  # a second: the least there is
REST_S = 20.0
LIMIT_S = 300.0  # for a step, faults and all
EMPTY_S = 60.0
AGAIN_S = 1.0
ENDED_MOVER_S = 900.0
COMMAND_S = 240.0

LEFT_ALONE, INTERRUPTED, KILLED = "left alone", "interrupted", "killed"
CANCELLED, REVERSED = "cancelled", "reversed"
WAYS = (LEFT_ALONE, LEFT_ALONE, INTERRUPTED, KILLED, CANCELLED, REVERSED)
WAIT_S = (1.0, 12.0)  # before it is interrupted
_THROTTLE = ("--throttle", str(THROTTLE_MIB))
_UNTOLD = "is not alive"
_NEVER = ("Traceback", "moved by somebody else", "not by this plan")


def make_bulk(world: World, plan: Plan) -> None:
    """A topic with bytes enough that moves last, before anything breaks."""
    size = BULK_SHORT_BYTES if plan.is_short else BULK_BYTES
    world.make_topic(BULK, BULK_PARTITIONS, {})
    world.topics.append(BULK)
    rng = random.Random(plan.seed)
    producer = Producer({**QUIET, "bootstrap.servers": world.addresses, "acks": "all"})
    for number in range(size // BULK_RECORD_BYTES):
        value = rng.randbytes(BULK_RECORD_BYTES)
        producer.produce(BULK, value, partition=number % BULK_PARTITIONS)
        producer.poll(0)
    assert not producer.flush(ENDED_S), "the bulk was not taken"


class Mover:
    """Grows and shrinks the cluster in a thread, once or until `stop`; it ends as three brokers."""

    def __init__(self, world: World, plan: Plan, say: Callable[[str], None]) -> None:
        self.moving: list[Span] = []
        self.troubles: list[str] = []
        self.counts: Counter[str] = Counter()
        self._world = world
        self._plan = plan
        self._say = say
        self._rng = random.Random(f"moves {plan.seed}")
        self._spares = world.hosts[BROKERS:]
        self._plans = 0
        self._log = plan.directory / "reassign.log"
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Have it end what it has begun: the cluster is as it was."""
        self._is_stopping.set()
        self._thread.join(ENDED_MOVER_S)
        if self._thread.is_alive():
            self.troubles.append(f"moves did not end in {ENDED_MOVER_S:.0f} s")

    def _run(self) -> None:
        try:
            while not self._is_stopping.is_set():
                self._grow_and_shrink()
                if self._plan.is_short:
                    break
                self._is_stopping.wait(REST_S)
        except BaseException as error:
            self.troubles.append(f"moves: {error!r}")
            raise

    def _grow_and_shrink(self) -> None:
        self._join()
        self._reassign("spread what is in use", TOPIC, OFFSETS)
        self._reassign("level all")
        if not self._plan.is_short:
            self._is_stopping.wait(REST_S)
        drained = [text for each in self._spares for text in ("--drain", str(each.id))]
        self._reassign("drain", *drained, "--only-needed")
        self._leave()
        self.counts["grown and shrunk"] += 1

    def _join(self) -> None:
        with self._world.membership:
            for each in self._spares:
                each.start()
                self._world.brokers.append(each)
        self._say(f"  brokers {self._ids()} are there")

    def _leave(self) -> None:
        """The drained brokers stop, once their disks are empty."""
        for each in self._spares:
            end_s = time.monotonic() + EMPTY_S
            while not self._left(each):
                if time.monotonic() > end_s:
                    raise RuntimeError(f"broker {each.id} keeps replicas that are drained")
                time.sleep(AGAIN_S)
        self.troubles += self._world.throttled()
        self._say(f"  brokers {self._ids()} are there")

    def _left(self, broker: Broker) -> bool:
        with self._world.membership:
            if live_replicas(broker.disk.log_directory):
                return False
            broker.stop()
            self._world.brokers.remove(broker)
            return True

    def _ids(self) -> str:
        return ", ".join(str(each.id) for each in self._world.brokers)

    def _reassign(self, what: str, *arguments: str) -> None:
        """Plan and carry out; anew where all of it was taken back."""
        way = LEFT_ALONE if self._is_stopping.is_set() else self._rng.choice(WAYS)
        while True:
            path = self._make_plan(what, *arguments)
            begun_s = now_s()
            self._carry_out(path, way)
            self.moving.append(Span(begun_s, now_s()))
            self.counts[way] += 1
            self._say(f"  moves done: {what}, {way}, in {now_s() - begun_s:.1f} s")
            if way != REVERSED:
                return
            way = LEFT_ALONE

    def _make_plan(self, what: str, *arguments: str) -> Path:
        self._plans += 1
        path = self._plan.directory / f"plan{self._plans}.json"
        said = self._until_done(
            *("plan", *arguments, "--sample", "1", *_THROTTLE, "--output", str(path))
        )
        self._say(f"  plan {self._plans}, {what}: {said}")
        return path

    def _carry_out(self, path: Path, way: str) -> None:
        command = ("execute", str(path), *_THROTTLE)
        back = ("--reverse",) if way == REVERSED else ()
        if way != LEFT_ALONE:
            self._disturb(command, signal.SIGKILL if way == KILLED else signal.SIGINT)
        if way in (CANCELLED, REVERSED):
            self._until_done("cancel", str(path))
        self._until_done(*command, *back)
        self._until_done("verify", str(path), *back)

    def _disturb(self, command: tuple[str, ...], how: signal.Signals) -> None:
        """Begin it, and end it a little later."""
        process = self._begin(*command)
        try:
            process.wait(self._rng.uniform(*WAIT_S))
        except subprocess.TimeoutExpired:
            process.send_signal(how)
        self._check(command, process.communicate(timeout=COMMAND_S)[1])

    def _until_done(self, *command: str) -> str:
        """Again until it exits with 0, throttles removed; the last line that it says."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            process = self._begin(*command)
            try:
                output, errors = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                self.troubles.append(f"{command[0]} took more than {COMMAND_S:.0f} s: {errors}")
            self._check(command, errors)
            if process.returncode == 0 and not (command[0] == "verify" and _UNTOLD in errors):
                return output.splitlines()[-1] if output else ""
            self._say(f"  {command[0]} exits with {process.returncode}: {errors.strip()[-200:]}")
            if time.monotonic() > end_s:
                raise RuntimeError(f"{command} is not done after {LIMIT_S:.0f} s: {errors}")
            time.sleep(AGAIN_S)

    def _begin(self, *command: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            log.write(f"{now_s():.3f} kdist reassign {' '.join(command)}\n")
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "kdist.cli", "reassign", *command),
                *("--broker", self._world.addresses),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _check(self, command: tuple[str, ...], errors: str) -> None:
        """What no fault of a broker may have it say."""
        with self._log.open("a") as log:
            log.write(f"{now_s():.3f} {command[0]} has ended: {errors}\n")
        if any(text in errors for text in _NEVER):
            self.troubles.append(f"kdist reassign {' '.join(command)}: {errors.strip()[-300:]}")
