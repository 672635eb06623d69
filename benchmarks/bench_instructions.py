"""Instructions that a broker takes for a request, by callgrind: `make bench-instructions`.

Time on a shared machine does not show a difference of some percent; a count of instructions does.
The broker is `kdist broker` on its real loop, disk and ZooKeeper, run by valgrind and asked on one
connection, one request after the other. Counted is all that its process does meanwhile, the loop's
turns included, but not what the kernel does. The median of some counts, since now and then one has
the work of a timer in it. With `--beside DIR` the broker of another checkout of kdist is counted in
turn with this one's, and the ratio to that one's is judged.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import broker_frames as frames
import broker_world
from broker_world import Broker
from measuring import Row, show

from kdist.records.batch import seal, set_max_timestamp
from kdist.records.build import build_batch
from kdist.records.compression import Codec

ROUNDS = 5
REQUESTS, WARM_UP = 300, 100
RATIO_MAX = 1.03
READY_S = 300  # under valgrind all takes some ten times as long
_MANY = 1000  # records of a large batch
_FETCHED = 64  # records in the log that is fetched from
_FETCH_BYTES_MAX = 1 << 20
_TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)  # "summary" is 0 in a first dump


class Counted(NamedTuple):
    """A broker under callgrind, and the directory that its counts are written to."""

    broker: Broker
    directory: Path

    def instructions(self, frame: bytes, fetched_bytes: int) -> float:
        """Instructions for one such request."""
        self.broker.ask(frame, fetched_bytes)
        with self.broker.connect() as connection:
            for _ in range(WARM_UP):
                frames.exchange(connection, frame)
            self._control("--instr=on")
            for _ in range(REQUESTS):
                frames.exchange(connection, frame)
            self._control("--instr=off")
        return self._dumped() / REQUESTS

    def _control(self, action: str) -> None:
        pid = str(self.broker.process.pid)
        subprocess.run(["callgrind_control", action, pid], check=True, capture_output=True)

    def _dumped(self) -> int:
        """All instructions since the last dump, by all threads."""
        before = {*self.directory.iterdir()}
        self._control("--dump")
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s:
            new = [each for each in self.directory.iterdir() if each not in before]
            found = [_TOTAL.search(each.read_text()) for each in new]
            if found and all(found):
                return sum(int(each[1]) for each in found if each is not None)
            time.sleep(0.1)
        raise RuntimeError(f"callgrind has written nothing into {self.directory}")


@contextlib.contextmanager
def counted_broker(directory: Path, connect: str, tree: Path | None) -> Iterator[Counted]:
    """A broker that is ready, and that nothing is counted of yet."""
    counts = directory / "counts"
    counts.mkdir(parents=True)
    wrapper = (
        *("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"),
        f"--callgrind-out-file={counts}/count.%p",
    )
    broker_world.READY_S = READY_S
    with broker_world.kdist_broker(directory, connect, *wrapper, tree=tree) as broker:
        yield Counted(broker, counts)


# --- tasks --------------------------------------------------------------------------------------


def _unset(batch: bytearray) -> bytes:
    """The batch of a client that leaves the newest timestamp unset."""
    set_max_timestamp(batch, 0, -1)
    seal(batch, 0, len(batch))
    return bytes(batch)


def _many(codec: Codec) -> bytearray:
    values = [(b"%05d" % number) * 200 for number in range(_MANY)]
    return build_batch(values, timestamp_ms=frames.TIMESTAMP_MS, codec=codec)


BATCHES: dict[str, Callable[[], bytes]] = {
    "1 record": frames.one_record,
    "64 KiB": lambda: frames.bulk(64 << 10)[0],
    "1,000 records": lambda: bytes(_many(Codec.NONE)),
    "1,000 records, newest timestamp unset": lambda: _unset(_many(Codec.NONE)),
    "1,000 records, lz4": lambda: bytes(_many(Codec.LZ4)),
    "1,000 records, lz4, newest timestamp unset": lambda: _unset(_many(Codec.LZ4)),
}


def rows(brokers: list[Counted]) -> Iterator[Row]:
    """Every task's counts: of each broker, and the ratio."""
    plain = [each.broker for each in brokers]
    for name, batch in BATCHES.items():
        for acks in (1, -1) if name == "1 record" else (1,):
            with broker_world.topic(plain) as topic:
                frame = frames.produce_frame(topic, batch(), acks)
                task = f"produce {name}, acks={'all' if acks < 0 else acks}"
                yield from _compared(task, brokers, frame, 0)
    one = frames.one_record()
    with broker_world.topic(plain) as topic:
        for each in plain:
            each.fill(topic, one, _FETCHED)
        frame = frames.fetch_frame(topic, _FETCHED - 1, _FETCH_BYTES_MAX)
        yield from _compared("fetch 1 record", brokers, frame, len(one))


def _compared(task: str, brokers: list[Counted], frame: bytes, fetched: int) -> Iterator[Row]:
    found: dict[str, list[float]] = {each.broker.name: [] for each in brokers}
    for number in range(ROUNDS):
        for each in brokers if number % 2 else reversed(brokers):
            found[each.broker.name].append(each.instructions(frame, fetched))
    medians = {name: statistics.median(counts) for name, counts in found.items()}
    kdist, other = medians["kdist"], medians.get(broker_world.OTHER)
    if other is None:
        yield Row(task, "kdist", kdist, "instructions")
        return
    yield Row(task, broker_world.OTHER, other, "instructions")
    ratio = kdist / other
    budget = f"at most {RATIO_MAX:.2f}"
    ratios = {broker_world.OTHER: ratio}
    yield Row(task, "kdist", kdist, "instructions", ratios, budget, ratio <= RATIO_MAX)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--beside", metavar="DIR", type=Path, help="another checkout of kdist")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix=".bench-instructions-", dir=".") as path,
        contextlib.ExitStack() as stack,
    ):
        directory = Path(path).absolute()
        connect = stack.enter_context(broker_world.zookeeper(directory / "zookeeper"))
        trees = {"kdist": None} | ({"other": arguments.beside} if arguments.beside else {})
        brokers = [
            stack.enter_context(counted_broker(directory / name, f"{connect}/{name}", tree))
            for name, tree in trees.items()
        ]
        found: list[Row] = []
        try:
            for row in rows(brokers):
                found.append(row)
                print(row.task, file=sys.stderr, flush=True)
        finally:
            show(found, as_json=arguments.json)


if __name__ == "__main__":
    main()
