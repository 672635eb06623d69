"""Run histories of many seeds: `make simulate [SEEDS=n] [FIRST_SEED=n] [PLANTED=1]`.

Prints what it finds: the seed, and the last events of a history as short as it could be made that
violates the same. Exits with 1 if there was a violation, if two runs of a seed differ, or if some
rare state never came up in many seeds. Each tenth seed runs twice: that a run can be repeated is a
property of the code, not of the seed. With PLANTED=1 it tells in how many seeds each of the known
bugs is found, and exits with 1 if one is not.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import zip_longest
from statistics import median
from typing import TypeVar

from tests.simulator.planted import PLANTED
from tests.simulator.playing import run
from tests.simulator.record import SOMETIMES, Outcome
from tests.simulator.script import ALL, Script
from tests.simulator.shrinking import shrink

T = TypeVar("T")

CORES = os.cpu_count() or 1
MANY = 200  # seeds, in which each of `SOMETIMES` must come up
TWICE_EVERY = 10
TELL_EVERY = 20


class Workers:
    """Processes in which sets of strings have an order of their own, by `hash_seed`."""

    def __init__(self, hash_seed: int, count: int) -> None:
        self._hash_seed = hash_seed
        # What is imported need not be looked at in each collection of a history's garbage.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, context, initializer=gc.freeze)

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """Have it done; a process that this starts inherits the environment of now."""
        os.environ["PYTHONHASHSEED"] = str(self._hash_seed)
        return self._pool.submit(work, *args)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def simulate(seeds: range) -> int:
    """Run the seeds; the exit status. A seed's two runs differ in the order of sets."""
    bad, sometimes, begun_s = 0, Counter[str](), time.monotonic()
    first, second = Workers(1, CORES), Workers(2, 1)
    repeated, passed_s = 0, 0.0
    for number, running in enumerate([first.submit(run, seed) for seed in seeds], 1):
        one = two = running.result()
        sometimes.update(dict.fromkeys(one.sometimes, 1))
        passed_s += one.passed_s
        if one.seed % TWICE_EVERY == 0:
            two = second.submit(run, one.seed).result()
            repeated += 1
        if one.violation or one.trace_hash != two.trace_hash:
            bad += 1
            _show(one, two)
        if number % TELL_EVERY == 0 or number == len(seeds):
            took_s = time.monotonic() - begun_s
            hours = passed_s / 3600
            told = f"{number} of {len(seeds)} seeds, {hours:.1f} hours in {took_s:.0f} s, {bad} bad"
            print(told, flush=True)
    first.close()
    second.close()
    print(f"{repeated} of the seeds ran twice, with the same events unless it says so above.")
    print("Seeds in which a rare state came up:")
    for state in (*SOMETIMES, *sorted(set(sometimes) - set(SOMETIMES))):
        print(f"{sometimes[state]:8} {state}")
    never = [state for state in SOMETIMES if not sometimes[state]]
    if never and len(seeds) >= MANY:
        print(f"never: {', '.join(never)}")
        return 1
    return 1 if bad else 0


def _show(one: Outcome, two: Outcome) -> None:
    if one.violation:
        print(f"seed {one.seed}: {one.violation}", flush=True)
        shortest, script = shrink(one)
        print("\n".join(shortest.last_events))
        print(f"seed {one.seed}, shrunk: {shortest.violation}")
        print(f"replay: python -m tests.simulator {' '.join(options(one.seed, script))}")
    if one.trace_hash != two.trace_hash:
        pairs = zip_longest(one.events, two.events, fillvalue="nothing")
        differing = next((pair for pair in pairs if pair[0] != pair[1]), ("no event", "no event"))
        print(f"seed {one.seed}: its two runs differ: {' / '.join(differing)}")
    print(f"replay: make simulate SEEDS=1 FIRST_SEED={one.seed}", flush=True)


def options(seed: int, script: Script) -> list[str]:
    """Of the command that replays what is left of a seed."""
    return ["--seeds=1", f"--first-seed={seed}", *script.options]


def replay(seed: int, script: Script) -> int:
    """Play what is left of a seed that was shrunk; the exit status."""
    outcome = run(seed, script=script)
    print("\n".join(outcome.last_events or outcome.events))
    print(f"seed {seed}: {outcome.violation or 'no violation'}")
    return 1 if outcome.violation else 0


def hunt(seeds: range) -> int:
    """How many seeds it takes to find each planted bug; the exit status. Only a violated promise
    is a find: what is merely raised may be a fault of the patch."""
    needed: dict[str, int] = {}
    workers = Workers(1, CORES)
    print("seeds  bug: violation", flush=True)
    for some in _growing(seeds):  # so that a bug that is hard to find keeps none waiting for long
        for bug in [each for each in PLANTED if each not in needed]:
            found = find(workers, bug, some)
            if found is not None:
                needed[bug] = found.seed - seeds.start + 1
                print(f"{needed[bug]:>5}  {bug}: {found.violation}", flush=True)
    workers.close()
    for bug in [each for each in PLANTED if each not in needed]:
        print(f" none  {bug}")
    middle = f", in {median(needed.values()):.0f} seeds (the median)" if needed else ""
    print(f"{len(needed)} of {len(PLANTED)} planted bugs found within {len(seeds)} seeds{middle}")
    return 0 if len(needed) == len(PLANTED) else 1


def _growing(seeds: range) -> Iterator[range]:
    """Parts of the seeds, each as large as all before it."""
    done, size = 0, 2 * CORES
    while done < len(seeds):
        yield seeds[done : done + size]
        done, size = done + size, max(size, done + size)


def find(workers: Workers, bug: str, seeds: range) -> Outcome | None:
    """The first seed's history that finds a planted bug."""
    for start in range(0, len(seeds), CORES):
        outcomes = [workers.submit(run, seed, bug) for seed in seeds[start : start + CORES]]
        found = [each.result() for each in outcomes if each.result().is_promise]
        if found:
            return found[0]
    return None


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command was given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--faults", help="those to be played, of one seed that was shrunk")
    parser.add_argument("--idle", default="", help="clients that do nothing then")
    parser.add_argument("--ends-early", action="store_true", help="after the last of the faults")
    return parser.parse_args(words)


def script_of(given: argparse.Namespace) -> Script:
    """What is to be played of each seed."""
    if given.faults is None:
        return ALL
    faults, idle = (tuple(filter(None, each.split(","))) for each in (given.faults, given.idle))
    return Script(faults, idle, given.ends_early)


def main() -> int:
    given = parsed()
    chosen = range(given.first_seed, given.first_seed + given.seeds)
    if script_of(given) != ALL:
        return replay(chosen.start, script_of(given))
    return hunt(chosen) if given.planted else simulate(chosen)


if __name__ == "__main__":
    sys.exit(main())
