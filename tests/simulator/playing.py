"""One seed, played: what a test and each process of `make simulate` do."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulator.history import History
from tests.simulator.planted import planted
from tests.simulator.record import Outcome
from tests.simulator.script import ALL, Script


def run(seed: int, bug: str = "", script: Script = ALL) -> Outcome:
    """Run a seed's history, with a planted bug or none."""
    with quiet():
        with planted(bug):
            outcome = History(seed, script).run()
        gc.collect()
    return outcome


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
