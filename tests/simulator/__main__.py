"""Run histories of many seeds, each twice: `make simulate SEEDS=n [FIRST_SEED=n] [PLANTED=1]`.

Prints what it finds with the seed and the last events; exits with 1 if there was a violation, if
two runs of a seed differ, or if some rare state never came up in many seeds.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from tests.simulator.history import SOMETIMES, History, Outcome
from tests.simulator.planted import PLANTED, planted

MANY = 200  # seeds, in which each of `SOMETIMES` must come up


def play(seed: int, bug: str = "", *, times: int = 2) -> list[Outcome]:
    """Run a seed's history, with a planted bug or none."""
    outcomes = []
    with quiet():
        for _ in range(times):
            with planted(bug):
                outcomes.append(History(seed).run())
            gc.collect()
    return outcomes


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block nothing is logged, killed processes leave no warnings, and when the garbage
    collector runs decides nothing."""
    disabled, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _unraisable: None
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.enable()
        sys.unraisablehook = hook
        logging.disable(disabled)


def simulate(seeds: range) -> int:
    """Run the seeds; the exit status."""
    bad, sometimes, begun_s = 0, Counter[str](), time.monotonic()
    with ProcessPoolExecutor(os.cpu_count(), max_tasks_per_child=None) as pool:
        for number, (one, two) in enumerate(pool.map(play, seeds, chunksize=2), 1):
            sometimes.update(one.sometimes)
            if one.violation or one.trace_hash != two.trace_hash:
                bad += 1
                _show(one, two)
            if number % 10 == 0 or number == len(seeds):
                took_s = time.monotonic() - begun_s
                print(f"{number} of {len(seeds)} seeds, {bad} bad, {took_s:.0f} s", flush=True)
    never = [state for state in SOMETIMES if not sometimes[state]]
    for state in sorted(set(SOMETIMES) | set(sometimes)):
        print(f"{sometimes[state]:8} {state}")
    if never and len(seeds) >= MANY:
        print(f"never: {', '.join(never)}")
        return 1
    return 1 if bad else 0


def _show(one: Outcome, two: Outcome) -> None:
    print("\n".join(one.last_events))
    if one.trace_hash != two.trace_hash:
        print(f"seed {one.seed}: its two runs differ")
    if one.violation:
        print(f"seed {one.seed}: {one.violation}")
    print(f"replay: make simulate SEEDS=1 FIRST_SEED={one.seed}", flush=True)


def hunt(seeds: range) -> int:
    """How many seeds it takes to find each planted bug; the exit status."""
    missed = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for bug in PLANTED:
            runs = pool.map(partial(play, bug=bug, times=1), seeds)
            found = next((each[0] for each in runs if each[0].violation), None)
            missed += found is None
            after = "not found" if found is None else f"seed {found.seed}: {found.violation}"
            print(f"{bug}: {after}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--planted", action="store_true")
    given = parser.parse_args()
    chosen = range(given.first_seed, given.first_seed + given.seeds)
    sys.exit(hunt(chosen) if given.planted else simulate(chosen))
