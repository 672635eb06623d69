"""Runs our own checks with foreign clients: functions that raise on failure, one after another."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from confluent_kafka import KafkaException
from kafka.errors import KafkaError
from outcome import FAILED, PASSED, Outcome

T = TypeVar("T")  # what a suite's checks take: the bootstrap addresses, or the cluster
Check = Callable[[str], None]


class WrongAnswerError(Exception):
    """A check found something other than what it expected."""


# Errors of the clients, failed assertions, and errors of our parsing if an answer has changed.
CLIENT_ERRORS = (
    WrongAnswerError,
    KafkaError,
    KafkaException,
    OSError,
    AssertionError,
    ValueError,
    LookupError,
)


def expect(found: object, wanted: object, what: str) -> None:
    """Raises `WrongAnswerError` unless the two are equal."""
    if found != wanted:
        raise WrongAnswerError(f"{what}: wanted {wanted!r}, found {found!r}")


def new_name(of: str) -> str:
    """A name for a topic or group that no other run has used."""
    return f"{of}-{uuid.uuid4().hex[:12]}"


def run(
    suite: str,
    checks: Sequence[tuple[str, Callable[[T], None]]],
    given: T,
    names: Sequence[str] = (),
) -> Iterator[Outcome]:
    """Run the named checks, or all, in their order."""
    for name, check in checks:
        if not names or name in names:
            yield _run_one(suite, name, check, given)


def _run_one(suite: str, name: str, check: Callable[[T], None], given: T) -> Outcome:
    started_s = time.monotonic()
    try:
        check(given)
    except subprocess.TimeoutExpired as error:
        state, reason = FAILED, f"not done within {error.timeout} s: {error.cmd}"
    except CLIENT_ERRORS as error:
        state, reason = FAILED, f"{type(error).__name__}: {error}"
    else:
        state, reason = PASSED, ""
    return Outcome(suite, name, state, time.monotonic() - started_s, reason)
