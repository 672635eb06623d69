"""kdist's clients beside confluent-kafka, kafka-python and aiokafka: one run, one broker of kdist.

Measures sending, reading and latency with messages of 100 B and 1 KiB, acks=1 and all, uncompressed
and with lz4. Every round runs all contenders; the order is reversed every other round. Results are
medians, and ratios to confluent-kafka used in the same way: by wall clock, and by the CPU time of
all the client's threads. Budgets are judged by CPU time, which other work on the machine distorts
less. A missed budget is reported, like every loss, but is not a failure.

With `--beside DIR` kdist's clients alone are measured, beside those of another checkout of kdist,
and with `--instructions` their instructions for a message are counted by callgrind.

`.venv/bin/python benchmarks/bench_clients.py [--only WORDS] [--task WORDS] [--quick] [--json]`
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import clients_beside
from client_samples import Meter, Options, Taken, broker, fill, read, sent, topic, values
from consumer_contenders import BATCHES, ONE_BY_ONE, Contender
from latency_contenders import LATENCIES, Latency, quantile
from measuring import Row, show
from producer_contenders import SENDING, Load, Send

ROUNDS = 4
PORT = 39400
BUDGETS = {
    "kdist send_many": 3.0,
    "kdist send": 1.0,
    "kdist batches": 3.0,
    "kdist arrow": 3.0,
    "kdist iteration": 1.5,
    "kdist poll": 1.5,
}
SIZES = (100, 1024)
CODECS = ("none", "lz4")
SEND_COUNTS = {100: 300_000, 1024: 150_000}
# More than the 100,000 records that librdkafka prefetches: else it is done before timing starts.
READ_COUNTS = {100: 500_000, 1024: 300_000}
LATENCY_COUNT, LATENCY_INTERVAL_S = 5_000, 0.001


Measure = Callable[[], Taken]


# Tasks


def compare(task: str, contenders: Mapping[str, Measure], options: Options) -> Iterator[Row]:
    """Run all contenders in turn; the first is the yardstick."""
    first = next(iter(contenders))
    chosen = {name: each for name, each in contenders.items() if options.only in name}
    chosen = {first: contenders[first], **chosen}
    samples: dict[str, list[Taken]] = {name: [] for name in chosen}
    for number in range(options.rounds):
        order = list(chosen.items())
        for name, measure in order if number % 2 else reversed(order):
            samples[name].append(measure())
            print(".", end="", file=sys.stderr, flush=True)
    middle = {
        name: Taken(*(statistics.median(kind) for kind in zip(*found, strict=True)))
        for name, found in samples.items()
    }
    yardstick = middle[first]
    for name, taken in middle.items():
        ratios = {"wall": yardstick.wall / taken.wall, "CPU": yardstick.cpu / taken.cpu}
        budget = BUDGETS.get(name)
        yield Row(
            task,
            name,
            1 / taken.wall,
            f"messages/s, {taken.cpu * 1e9:,.0f} ns of CPU",
            {} if name == first else ratios,
            f"{budget:g} x" if budget else "",
            ratios["CPU"] >= budget if budget else None,
        )


def sending(options: Options, size: int, acks: str, codec: str) -> Iterator[Row]:
    """Producers."""
    everything = values(size, int(SEND_COUNTS[size] * options.share))
    loads = {part: Load(everything[::part], acks, codec) for _, part in SENDING.values()}

    def measure(send: Send, part: int) -> Measure:
        return lambda: sent(options.address, send, loads[part], Meter())

    task = f"send {size} B, acks={acks}, {codec}"
    yield from compare(task, {name: measure(*each) for name, each in SENDING.items()}, options)


def reading(options: Options, size: int, codec: str) -> Iterator[Row]:
    """Consumers, all reading one topic that confluent-kafka filled."""
    count = int(READ_COUNTS[size] * options.share)
    with topic(options.address, 1) as name:
        fill(options.address, name, codec, values(size, count))

        def measure(contender: Contender) -> Measure:
            return lambda: read(options.address, contender, name, count, Meter())

        for kind, contenders in (("batches", BATCHES), ("records", ONE_BY_ONE)):
            task = f"read {size} B, {codec}, {kind}"
            chosen = {each: measure(contender) for each, contender in contenders.items()}
            yield from compare(task, chosen, options)


def latency(options: Options) -> Iterator[Row]:
    """Time from when a message is due to be sent until a consumer has it, at 1,000 a second."""
    count = int(LATENCY_COUNT * options.share)
    found: dict[str, list[list[float]]] = {name: [] for name in LATENCIES}

    def measure(contender: Latency) -> list[float]:
        with topic(options.address, 1) as name:
            return contender(options.address, name, count, LATENCY_INTERVAL_S)

    for number in range(options.rounds):
        order = list(LATENCIES.items())
        for name, contender in order if number % 2 else reversed(order):
            found[name].append(measure(contender))
            print(".", end="", file=sys.stderr, flush=True)
    first = next(iter(LATENCIES))
    for what, part in (("median", 0.5), ("p99", 0.99)):
        lasted = {
            name: statistics.median(quantile(each, part) for each in rounds)
            for name, rounds in found.items()
        }
        for name, seconds in lasted.items():
            ratio = lasted[first] / seconds
            is_judged = name == "kdist" and what == "p99"
            yield Row(
                f"latency at 1,000/s, {what}",
                name,
                1 / seconds,
                f"/s: {seconds * 1000:.2f} ms",
                {} if name == first else {first: ratio},
                "1 x" if is_judged else "",
                ratio >= 1 if is_judged else None,
            )


def tasks(options: Options) -> Mapping[str, Callable[[], Iterator[Row]]]:
    """All tasks, by name."""
    found: dict[str, Callable[[], Iterator[Row]]] = {}
    for size, codec, acks in itertools.product(SIZES, CODECS, ("1", "all")):
        found[f"send {size} B, acks={acks}, {codec}"] = lambda a=size, b=acks, c=codec: sending(  # type: ignore[misc]
            options, a, b, c
        )
    for size, codec in itertools.product(SIZES, CODECS):
        found[f"read {size} B, {codec}"] = lambda a=size, c=codec: reading(options, a, c)  # type: ignore[misc]
    found["latency"] = lambda: latency(options)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny rounds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="(default: %(default)s)")
    parser.add_argument("--only", default="", help="contenders whose name has this in it")
    parser.add_argument("--task", default="", help="tasks whose name has this in it")
    parser.add_argument(
        "--port", type=int, default=PORT, help="the broker's (default: %(default)s)"
    )
    parser.add_argument("--directory", metavar="DIR", default=".", help="work below DIR")
    parser.add_argument("--beside", metavar="DIR", type=Path, help="another checkout of kdist")
    parser.add_argument(
        "--instructions", action="store_true", help="with --beside: count them, by callgrind"
    )
    arguments = parser.parse_args()
    if arguments.instructions and arguments.beside is None:
        parser.error("--instructions needs --beside DIR")
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=arguments.directory) as path,
        broker(Path(path).absolute(), arguments.port) as address,
    ):
        rounds, share = (1, 0.01) if arguments.quick else (arguments.rounds, 1.0)
        options = Options(address, rounds, share, arguments.only)
        if arguments.beside is not None:
            rows += clients_beside.rows(
                options, arguments.task, arguments.beside, counts=arguments.instructions
            )
        else:
            for name, task in tasks(options).items():
                if arguments.task in name:
                    rows += task()
    print(file=sys.stderr)
    show(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
