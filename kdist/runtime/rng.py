"""Randomness seeded by the operating system: for production, where a test passes a fixed seed."""

from __future__ import annotations

import random


def system_rng() -> random.Random:
    """A generator with an unpredictable seed. Not for secrets."""
    return random.Random()
