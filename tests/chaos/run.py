"""A run: clients at work, one fault after another, all healed in the end, and the judgement."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.availability import (
    Occurrence,
    acknowledged,
    latencies,
    outages,
    too_long,
)
from tests.chaos.checker import (
    RENUMBERED,
    Anomaly,
    Place,
    count_outcomes,
    judge,
    shown_errors,
    unheard,
)
from tests.chaos.clients import (
    LOGGER,
    TOPIC,
    Franz,
    Membership,
    Producing,
    Reading,
    Refused,
    Watching,
    read_all,
)
from tests.chaos.faults import FAULTS, draw
from tests.chaos.history import Journal, load, now_s
from tests.chaos.moving import Mover, make_bulk
from tests.chaos.pace import Span, paces, too_slow
from tests.chaos.replicas import Logs, Writer, read_logs
from tests.chaos.result import Plan, Result
from tests.chaos.world import World

TOO_LARGE = "too-large"
EACH_S = 10.0
SHORT_PAUSE_S = 3.0
WARM_S = 4.0
METRICS_PAUSE_S = 5.0
OVERLAP_SHARE = 0.15  # of faults that do not wait until the last is overcome
SAFE_WITHOUT_SYNC = {"pause", "controller deposed", "blink from zookeeper", "zookeeper leader dies"}


def _log_clients(path: Path) -> None:
    logger, handler = logging.getLogger(LOGGER), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


class Run:
    """One run in a directory of its own, which keeps its histories and the brokers' logs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.result = Result(plan)
        self._begun_s = time.monotonic()
        self._rng = random.Random(plan.seed)
        self._troubles: list[str] = []
        self._logs = Logs([], {})
        self._paths = [plan.directory / name for name in ("history.jsonl", "franz.jsonl")]
        _log_clients(plan.directory / "clients.log")
        self.world = World(plan, self.say)
        self._mover: Mover | None = None
        self._healed_s: dict[int, float] = {}  # by how many faults there had been

    def say(self, text: str) -> None:
        """A line of the transcript."""
        print(f"{time.monotonic() - self._begun_s:7.1f} s  {text}", flush=True)

    def play(self) -> Result:
        """The whole run."""
        journal = Journal(self._paths[0])
        try:
            self.world.start()
            if self.plan.grows:
                make_bulk(self.world, self.plan)
            self.say("started")
            stopped_s = self._load(journal)
            self._stop_brokers()
        finally:
            journal.close()
            self.world.close()
        self._judge(stopped_s)
        return self.result

    def _load(self, journal: Journal) -> float:
        """Clients at work while faults come and go; when producers stopped."""
        addresses = self.world.addresses
        franz = Franz(self._paths[1], addresses)
        membership = Membership(journal, addresses)
        producers = [Producing(journal, addresses, f"librdkafka{n}") for n in range(2)]
        refused = Refused(journal, addresses, TOO_LARGE)
        readers = [Reading(journal, addresses, "reader"), Watching(journal, addresses, "watcher")]
        time.sleep(WARM_S)
        if self.plan.grows:
            self._mover = Mover(self.world, self.plan, self.say)
        self._inject_all(membership)
        if self._mover is not None:
            self._mover.stop()
            self._troubles += self._mover.troubles
        franz.begin_to_stop()
        for each in producers:
            each.begin_to_stop()
        stopped_s = now_s()
        for thread in (*producers, refused):
            thread.stop()
        self._troubles += franz.stop()
        self.say("all producers have their answers")
        if trouble := read_all(journal, addresses, "last-reader"):
            self._troubles.append(trouble)
        self._troubles += membership.stop()
        for thread in readers:
            thread.stop()
        for thread in (*producers, refused, *readers):
            self._troubles += thread.failed
        return stopped_s

    def _inject_all(self, membership: Membership) -> None:
        end_s = time.monotonic() + self.plan.seconds
        for number, kind in enumerate(self._kinds()):
            if self._is_over(number, end_s):
                break
            begun_s = time.monotonic()
            self._inject(kind)
            if number % 3 == 2:
                membership.change()
            if self._rng.random() >= OVERLAP_SHARE or kind not in SAFE_WITHOUT_SYNC:
                self._wait_until_healthy(kind)
            time.sleep(max(0.0, begun_s + self._pause_s() - time.monotonic()))
        self._wait_until_healthy("the last fault")

    def _is_over(self, number: int, end_s: float) -> bool:
        """In a short run that grows and shrinks, once it has; else by the clock."""
        if self._mover is not None and self.plan.is_short:
            return self._mover.has_ended
        return time.monotonic() > end_s and (number > 0 or self.plan.seconds == 0)

    def _kinds(self) -> Iterator[str]:
        """One round of each kind in a short run that does not grow; else rounds without end."""
        yield from draw(self._rng, self.plan)
        while self.plan.grows or not self.plan.is_short:
            yield from draw(self._rng, self.plan)

    def _pause_s(self) -> float:
        return SHORT_PAUSE_S if self.plan.is_short else EACH_S

    def _inject(self, kind: str) -> None:
        with self.world.membership:
            self._break(kind)

    def _break(self, kind: str) -> None:
        is_counted = not self.world.ill()
        broker = self.world.choose(self._rng)
        led = frozenset(p for p, leader in self.world.leaders().items() if leader == broker.id)
        self.result.faults.append(Occurrence(kind, now_s(), led, is_counted))
        controller = self.world.controller()
        self.say(f"{kind}: broker {broker.id}, leads {sorted(led)}, controller {controller}")
        FAULTS[kind].act(self.world, broker, self._rng)

    def _wait_until_healthy(self, after: str) -> None:
        begun_s, limit_s = time.monotonic(), self.world.healthy_s
        if self.world.is_healthy_within(limit_s):
            self.say(f"  in sync after {time.monotonic() - begun_s:.1f} s more")
            self._healed_s[len(self.result.faults)] = now_s()
        else:
            self._troubles.append(f"not in sync {limit_s:.0f} s after {after}: {self.world.ill()}")
            self.say(self._troubles[-1])
            self._save_metrics()

    def _save_metrics(self) -> None:
        """Twice, so that it can be seen what goes on in vain."""
        for turn in ("a", "b"):
            for broker in self.world.brokers:
                name = f"metrics{len(self._troubles)}{turn}-broker{broker.id}.txt"
                broker.save_metrics(self.plan.directory / name)
            time.sleep(METRICS_PAUSE_S)

    def _stop_brokers(self) -> None:
        for broker in self.world.hosts:
            if broker.is_running:
                broker.stop()
        self._logs = read_logs([each.disk.log_directory for each in self.world.brokers], TOPIC)
        self._troubles += self._logs.faults
        for broker in self.world.hosts:
            self._troubles += [f"broker {broker.id}: {text}" for text in broker.unexpected]
            log = broker.log.read_text(errors="replace")
            if count := log.count("Traceback (most recent call last)"):
                self._troubles.append(f"broker {broker.id}: {count} tracebacks in {broker.log}")

    def _writer_at(self, place: Place) -> Writer | None:
        writers = self._logs.writers.get(place[0])
        return None if writers is None else writers.at(place[1])

    def _judge(self, stopped_s: float) -> None:
        events = load(self._paths)
        found = [
            *judge(events, self._writer_at),
            *shown_errors(events, TOO_LARGE),
            *unheard(events),
        ]
        self.result.renumbered = sum(each.kind == RENUMBERED for each in found)
        self.result.anomalies = [each for each in found if each.kind != RENUMBERED]
        self.result.anomalies += [Anomaly("trouble", text) for text in self._troubles]
        self.result.outcomes = count_outcomes(events)
        self.result.outages = outages(acknowledged(events), self.result.faults, stopped_s)
        if self.plan.kind == "kdist":  # Apache Kafka has promised nothing of the kind
            limits_s = {kind: fault.limit_s for kind, fault in FAULTS.items()}
            self.result.anomalies += too_long(self.result.outages, limits_s)
        self.result.latencies = latencies(events)
        if self._mover is not None:
            self.result.moved = self._mover.counts
            self.result.paces = paces(events, self._mover.moving, self._broken())
            if not self.plan.is_short:  # its faults leave too little time between them
                self.result.anomalies += too_slow(self.result.paces)

    def _broken(self) -> list[Span]:
        """From each fault until all was in sync again, or the next fault."""
        starts_s = [*(fault.at_s for fault in self.result.faults), now_s()]
        return [
            Span(at_s, self._healed_s.get(number, starts_s[number]))
            for number, at_s in enumerate(starts_s[:-1], 1)
        ]
