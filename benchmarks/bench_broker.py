"""The broker against a C program that makes the same system calls: `make bench-broker`.

Both servers run on one core and are loaded in turn from the other, in the order A B B A, with the
same bytes. With `--beside DIR` the broker of another checkout of kdist is loaded with them in the
same run, so that a change can be judged by its ratio to the tree before it. "CPU" is the CPU time
of a server's threads per request, kernel time included; "wall" is elapsed time, which includes what
other processes took of both cores. Ratios are judged by CPU: the machine is shared, and CPU time
leaves out other processes' work. Latency is elapsed time, which such work can only make worse. A
missed budget is reported but is not a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import broker_frames as frames
import broker_world
from broker_world import Broker
from measuring import Row, make_room, resident_bytes, show
from network_peers import Load, Result, build, run_load

ABOVE_US_MAX = 12.0  # design D2, for a produce or fetch of one partition
P99_MS_MAX = 2.0
IDLE_CONNECTIONS = 1000
IDLE_MB_MAX = 100.0
BULK_KIB = (64, 256, 1024)
FETCHED_BATCHES = 16  # of 64 KiB in an answer
SMALL_BATCHES = 64
SMALL_FETCH_BYTES_MAX = 1 << 20  # a consumer's default for a partition
_MIB = 1 << 20


class Scale(NamedTuple):
    """How long a run is. `rounds` is even, so that each contender goes first equally often.

    `appended_bytes` is more than a contender appends in `bulk_seconds`.
    """

    rounds: int
    seconds: float
    bulk_seconds: float
    appended_bytes: int
    log_bytes: int


FULL = Scale(6, seconds=0.7, bulk_seconds=0.25, appended_bytes=512 << 20, log_bytes=256 << 20)
QUICK = Scale(2, seconds=0.05, bulk_seconds=0.02, appended_bytes=16 << 20, log_bytes=8 << 20)


class Place(NamedTuple):
    """Where and how long a run works, on which brokers: this tree's, and perhaps another's."""

    directory: Path
    brokers: dict[str, Broker]
    scale: Scale

    @property
    def broker(self) -> Broker:
        """This tree's."""
        return self.brokers["kdist"]

    def topic(self) -> contextlib.AbstractContextManager[str]:
        """A new topic on each broker."""
        return broker_world.topic(list(self.brokers.values()))

    def fill(self, topic: str, batch: bytes, count: int) -> None:
        """Produce a batch to each broker's `topic` `count` times."""
        for broker in self.brokers.values():
            broker.fill(topic, batch, count)


class Work(NamedTuple):
    """A load, the same for both contenders, and the answer expected of the broker."""

    name: str
    load: Load
    unit: str  # "B", or "requests"
    bytes_each: int
    ratio_min: float | None
    above_us_max: float | None = None
    fetched_bytes: int = 0
    is_bulk_produce: bool = False


class Measured(NamedTuple):
    """The medians of one contender's rounds."""

    cpu_seconds_each: float
    requests_per_second: float
    p99_us: float


# --- measuring ----------------------------------------------------------------------------------


def measure(place: Place, work: Work) -> dict[str, Measured]:
    """Load both contenders in turn; the first round is a warm-up and is not counted."""
    frame, names = _first_frame(work.load), ["C", *place.brokers]
    found: dict[str, list[Result]] = {name: [] for name in names}
    answer_bytes = {
        name: each.ask(frame, work.fetched_bytes) for name, each in place.brokers.items()
    }
    for number in range(place.scale.rounds + 1):
        for name in names if number % 2 else reversed(names):
            result = _run(place, work, name)
            if name in answer_bytes:
                _check(work, result, answer_bytes[name])
            if number:
                found[name].append(result)
    return {name: _medians(results) for name, results in found.items()}


def _run(place: Place, work: Work, contender: str) -> Result:
    make_room(place.scale.appended_bytes if work.is_bulk_produce else 0)
    directory, scale, seconds = place.directory, place.scale, place.scale.seconds
    if work.is_bulk_produce:
        seconds = scale.bulk_seconds
    if contender in place.brokers:
        return run_load(directory, place.brokers[contender], work.load, seconds)
    file_bytes = scale.log_bytes if work.fetched_bytes else 0
    fetch_bytes = work.fetched_bytes or 1
    with broker_world.c_program(directory, file_bytes, fetch_bytes) as server:
        return run_load(directory, server, work.load, seconds)


def _check(work: Work, result: Result, answer_bytes: int) -> None:
    """Raise unless all answers have the size of the checked one, so that none can be an error."""
    under_way = work.load.connections * work.load.depth
    whole = result.requests * answer_bytes
    if not whole <= result.bytes <= whole + under_way * answer_bytes:
        raise RuntimeError(f"{work.name}: {result}, {answer_bytes} bytes an answer")


def _first_frame(load: Load) -> bytes:
    return load.frame[: 4 + int.from_bytes(load.frame[:4], "big")]


def _medians(results: list[Result]) -> Measured:
    return Measured(
        statistics.median(each.server_cpu_seconds / max(1, each.requests) for each in results),
        statistics.median(each.requests / each.seconds for each in results),
        statistics.median(each.p99_us for each in results),
    )


def ratios(place: Place, work: Work) -> list[Row]:
    """The rows for one load."""
    found = measure(place, work)
    c, kdist = found["C"], found["kdist"]
    above_us = (kdist.cpu_seconds_each - c.cpu_seconds_each) * 1e6
    rows = _rows(
        f"{work.name}, CPU",
        f"{work.unit}/CPU s",
        {name: work.bytes_each / each.cpu_seconds_each for name, each in found.items()},
        work.ratio_min,
    )
    if work.above_us_max is not None:
        budget, is_met = f"{work.above_us_max:.0f} us above C", above_us <= work.above_us_max
        rows.append(Row(f"{work.name}, above C", "kdist", above_us, "us", {}, budget, is_met))
    return rows + _rows(
        f"{work.name}, wall",
        f"{work.unit}/s",
        {name: work.bytes_each * each.requests_per_second for name, each in found.items()},
        None,
    )


def _rows(task: str, unit: str, rates: dict[str, float], ratio_min: float | None) -> list[Row]:
    ratios = {  # in a tiny round on a busy machine, somebody may not have been served at all
        name: rates["kdist"] / rate if rate else float("nan")
        for name, rate in rates.items()
        if name != "kdist"
    }
    budget = "" if ratio_min is None else f"{ratio_min:.2f} x C"
    is_met = None if ratio_min is None else ratios["C"] >= ratio_min
    yardsticks = [Row(task, name, rates[name], unit) for name in ratios]
    return [*yardsticks, Row(task, "kdist", rates["kdist"], unit, ratios, budget, is_met)]


# --- tasks --------------------------------------------------------------------------------------


def idle(place: Place) -> Iterator[Row]:
    """Memory of a broker with idle connections, each of which has sent one ApiVersions request."""
    task, broker = f"{IDLE_CONNECTIONS} idle connections, memory", place.broker
    yield Row(task, "kdist, none", resident_bytes(broker.process.pid) / _MIB, "MiB")
    frame = frames.api_versions_frame()
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            frames.exchange(stack.enter_context(broker.connect()), frame)
        taken = resident_bytes(broker.process.pid) / _MIB
    budget, is_met = f"{IDLE_MB_MAX:.0f} MB", taken * _MIB / 1e6 <= IDLE_MB_MAX
    yield Row(task, f"kdist, {IDLE_CONNECTIONS}", taken, "MiB", {}, budget, is_met)


def small_produces(place: Place) -> Iterator[Row]:
    """One record at a time, acknowledged by the leader alone and by all replicas."""
    for acks, connections in itertools.product((1, -1), (1, 10, 50)):
        name = f"produce 1 record, acks={'all' if acks < 0 else acks}, {connections} connections"
        with place.topic() as topic:
            frame = frames.produce_frame(topic, frames.one_record(), acks)
            load = Load(connections, 1, frame)
            yield from ratios(place, Work(name, load, "requests", 1, 0.4, ABOVE_US_MAX))


def bulk_produces(place: Place) -> Iterator[Row]:
    """Batches of many records, two requests in flight on each of two connections."""
    for kib in BULK_KIB:
        batch, _ = frames.bulk(kib << 10)
        with place.topic() as topic:
            load = Load(2, 2, frames.produce_frame(topic, batch))
            name = f"produce {kib} KiB, 2 connections"
            yield from ratios(place, Work(name, load, "B", len(batch), 0.75, is_bulk_produce=True))


def small_fetches(place: Place) -> Iterator[Row]:
    """The last record of a log, as a consumer at the end of the log fetches it."""
    batch = frames.one_record()
    with place.topic() as topic:
        place.fill(topic, batch, SMALL_BATCHES)
        frame = frames.fetch_frame(topic, SMALL_BATCHES - 1, SMALL_FETCH_BYTES_MAX)
        for connections in (1, 10, 50):
            name = f"fetch 1 record, {connections} connections"
            load, size = Load(connections, 1, frame), len(batch)
            work = Work(name, load, "requests", 1, None, ABOVE_US_MAX, size)
            yield from ratios(place, work)


def bulk_fetches(place: Place) -> Iterator[Row]:
    """A whole log from the page cache, 1 MiB per fetch."""
    batch, records = frames.bulk(64 << 10)
    size = FETCHED_BATCHES * len(batch)
    with place.topic() as topic:
        fetches = place.scale.log_bytes // size
        place.fill(topic, batch, fetches * FETCHED_BATCHES)
        offsets = range(0, fetches * FETCHED_BATCHES * records, FETCHED_BATCHES * records)
        frame = b"".join(frames.fetch_frame(topic, offset, size) for offset in offsets)
        for consumers in (1, 2, 4):
            load = Load(consumers, 1, frame)
            name = f"fetch 1 MiB, {consumers} consumers"
            yield from ratios(place, Work(name, load, "B", size, 0.85, None, size))


def latencies(place: Place) -> Iterator[Row]:
    """The 99th percentile of one-record produces and fetches at half the broker's maximum rate."""
    batch = frames.one_record()
    with place.topic() as written, place.topic() as read:
        place.fill(read, batch, SMALL_BATCHES)
        produce = frames.produce_frame(written, batch)
        fetch = frames.fetch_frame(read, SMALL_BATCHES - 1, SMALL_FETCH_BYTES_MAX)
        for connections in (10, 50):
            for what, frame, size in (("produce", produce, 0), ("fetch", fetch, len(batch))):
                name = f"{what} 1 record, {connections} connections at half load, p99"
                load = Load(connections, 1, frame)
                yield from _latency(place, Work(name, load, "ms", 1, None, None, size))


def _latency(place: Place, work: Work) -> Iterator[Row]:
    most = run_load(place.directory, place.broker, work.load, place.scale.seconds)
    load = work.load._replace(rate=most.requests / most.seconds / 2)
    found = measure(place, work._replace(load=load))
    p99_ms = {name: each.p99_us / 1000 for name, each in found.items()}
    for name in [name for name in p99_ms if name != "kdist"]:
        yield Row(work.name, name, p99_ms[name], "ms")
    budget = f"under {P99_MS_MAX:.0f} ms"
    is_met = 0 < p99_ms["kdist"] < P99_MS_MAX  # 0: nothing was answered at all
    yield Row(work.name, "kdist", p99_ms["kdist"], "ms", {}, budget, is_met)


TASKS: dict[str, Callable[[Place], Iterator[Row]]] = {
    "idle": idle,  # first, before other tasks grow the broker's memory
    "small-produces": small_produces,
    "bulk-produces": bulk_produces,
    "small-fetches": small_fetches,
    "bulk-fetches": bulk_fetches,
    "latencies": latencies,
}


# --- the program --------------------------------------------------------------------------------


def run(directory: Path, scale: Scale, only: str, beside: Path | None) -> Iterator[Row]:
    """All rows of the tasks whose names begin with `only`."""
    build(directory)
    with contextlib.ExitStack() as stack:
        connect = stack.enter_context(broker_world.zookeeper(directory / "zookeeper"))
        brokers = {"kdist": stack.enter_context(broker_world.kdist_broker(directory, connect))}
        if beside is not None:
            other = directory / "other"
            brokers[broker_world.OTHER] = stack.enter_context(
                broker_world.kdist_broker(other, f"{connect}/other", tree=beside)
            )
        for name, task in TASKS.items():
            if name.startswith(only):
                print(name, file=sys.stderr, flush=True)
                yield from task(Place(directory, brokers, scale))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny rounds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--only", metavar="NAME", default="", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--beside", metavar="DIR", type=Path, help="another checkout of kdist")
    parser.add_argument(
        "--directory", metavar="DIR", default=".", help="work below DIR (default: here)"
    )
    arguments = parser.parse_args()
    if not any(name.startswith(arguments.only) for name in TASKS):
        parser.error(f"--only is none of {', '.join(TASKS)}")
    scale = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix=".bench-broker-", dir=arguments.directory) as path:
        rows: list[Row] = []
        try:
            rows.extend(run(Path(path).absolute(), scale, arguments.only, arguments.beside))
        finally:  # after a failure, still show what was measured before it
            show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
