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
from contextlib import suppress
from itertools import zip_longest
from statistics import median
from typing import TypeVar

from tests.simulator.bug import places_of
from tests.simulator.planted import PLANTED, may_be_met
from tests.simulator.playing import run, run_apart
from tests.simulator.record import MET, SOMETIMES, Outcome
from tests.simulator.script import ALL, Script
from tests.simulator.shrinking import shrink

T = TypeVar("T")

CORES = os.cpu_count() or 1
MANY = 200  # seeds, in which each of `SOMETIMES` must come up
TWICE_EVERY = 10
TELL_EVERY = 20
TOGETHER = 48  # planted bugs in one history, once those are found that are easy to find


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


def hunt(seeds: range, bugs: Sequence[str], processes: int) -> int:
    """In how many seeds each of the planted bugs is found; the exit status. Only a violated promise
    is a find: what is merely raised may be a fault of the patch.

    Most seeds find none of those that are left, so many are planted together. If such a history
    breaks a promise, each half of them is played by itself, and so on.
    """
    needed: dict[str, int] = {}
    met = Counter[str]()
    workers = Workers(1, processes)
    print("seeds  bug: violation", flush=True)
    seen = 0
    with suppress(KeyboardInterrupt):  # by hand: then it tells how far it came
        for number, seed in enumerate(seeds, 1):
            seen, sound = number, workers.submit(run, seed).result()
            if sound.violation:
                print(f"seed {seed} is not good by itself: {sound.violation}", flush=True)
                continue
            left = [each for each in bugs if each not in needed]
            groups = _groups(left, min(8 + 4 * number, TOGETHER))
            for played in [workers.submit(run_apart, seed, each) for each in groups]:
                for names, outcome in played.result():
                    met.update(each for each in names if f"{MET}{each}" in outcome.sometimes)
                    if outcome.is_promise and len(names) == 1:
                        needed[names[0]] = number
                        print(f"{number:>5}  {names[0]}: {outcome.violation}", flush=True)
    workers.close()
    for bug in [each for each in bugs if each not in needed]:
        print(f" none  {bug}{'' if met[bug] or may_be_met(bug) else ', not met'}")
    middle = f", in {median(needed.values()):.0f} seeds (the median)" if needed else ""
    print(f"{len(needed)} of {len(bugs)} planted bugs found within {seen} seeds{middle}")
    return 0 if len(needed) == len(bugs) else 1


def _groups(bugs: Sequence[str], size: int) -> Iterator[list[str]]:
    """All of them, in groups of so many at most, whose places differ."""
    left = list(bugs)
    while left:
        group, taken = list[str](), set[object]()
        for bug in left:
            places = {each.place for each in places_of(PLANTED[bug])}
            if len(group) < size and taken.isdisjoint(places):
                group.append(bug)
                taken |= places
        left = [each for each in left if each not in group]
        yield group


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command was given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--only", default="", help="planted bugs with this in their names, or that")
    parser.add_argument("--processes", type=int, default=CORES, help="of a hunt")
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
    named = [each for each in PLANTED if any(part in each for part in given.only.split("|"))]
    return hunt(chosen, named, given.processes) if given.planted else simulate(chosen)


if __name__ == "__main__":
    sys.exit(main())
