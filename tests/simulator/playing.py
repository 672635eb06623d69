"""One seed, played: what a test and each process of `make simulate` do."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.simulator.history import History
from tests.simulator.planted import AND, may_be_met, planted
from tests.simulator.record import MET, Outcome
from tests.simulator.script import ALL, Script


def run(seed: int, bug: str = "", script: Script = ALL) -> Outcome:
    """Run a seed's history, with planted bugs or none, as `planted` has them."""
    with quiet():
        with planted(bug) as met:
            outcome = History(seed, script).run()
        gc.collect()
    outcome.sometimes.update({f"{MET}{name}": count for name, count in met.items()})
    return outcome


def run_apart(seed: int, bugs: Sequence[str]) -> list[tuple[Sequence[str], Outcome]]:
    """Run a seed's history with all of the planted bugs, and if anything is found, with parts of
    them, until each that is found was alone: each time with those that were planted."""
    outcome = run(seed, AND.join(bugs))
    found = [(bugs, outcome)]
    if outcome.violation and len(bugs) > 1:
        suspects = [
            each for each in bugs if may_be_met(each) or f"{MET}{each}" in outcome.sometimes
        ]
        half, others = len(suspects) // 2, [each for each in bugs if each not in suspects]
        if suspects:  # else it is a fault of the code itself
            for part in filter(None, (suspects[:half], suspects[half:], others)):
                found += run_apart(seed, part)
    return found


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
