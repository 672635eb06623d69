"""How long to pause before a retry: twice as long after each failure, up to a limit (pure).

Source: KIP-580. What every client that a failed disk concerns asks for at a fixed rate is a load
that grows with the cluster and never ends.
"""

from __future__ import annotations

import random

FIRST_MS = 100.0
MOST_MS = 1_000.0
_DOUBLINGS_MAX = 16
_JITTER = 0.2


def backoff_s(
    failures: int,
    first_ms: float = FIRST_MS,
    most_ms: float = MOST_MS,
    rng: random.Random | None = None,
) -> float:
    """The pause before the next attempt, in seconds; `failures` are those before the last one.

    With `rng`, up to a fifth shorter or longer, so that many clients do not retry at once.
    """
    pause_ms = min(first_ms * 2.0 ** min(failures, _DOUBLINGS_MAX), most_ms)
    return pause_ms / 1000 * (1 if rng is None else 1 + rng.uniform(-_JITTER, _JITTER))
