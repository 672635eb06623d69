"""A few of the simulator's histories; `make simulate` plays more."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature, signature
from typing import Any

import pytest

from tests.simulator.bug import Bug, patched
from tests.simulator.planted import PLANTED
from tests.simulator.playing import run

TWICE = range(4)
ONCE = range(25, 36)


@pytest.mark.parametrize("seed", TWICE)
def test_a_random_history_keeps_every_promise_and_can_be_repeated(seed: int) -> None:
    one, two = run(seed), run(seed)
    assert one.violation == "", "\n".join(one.last_events)
    assert one.trace_hash == two.trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("seed", ONCE)
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    outcome = run(seed)
    assert outcome.violation == "", "\n".join(outcome.last_events)


def test_a_planted_bug_is_found() -> None:
    outcomes = (run(seed, "consumers read what is not committed") for seed in range(20))
    assert any(each.violation.startswith(("S16", "S17")) for each in outcomes)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_called_as_what_it_replaces(name: str) -> None:
    found = PLANTED[name]
    for bug in [found] if isinstance(found, Bug) else found:
        sound = getattr(bug.owner, bug.name)
        with patched(bug):
            planted = getattr(bug.owner, bug.name)
        assert isinstance(sound, property) == isinstance(planted, property)
        if callable(sound):
            for given, named in _calls(signature(sound)):
                signature(planted).bind(*given, **named)  # a TypeError if it takes other arguments


def _calls(sound: Signature) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments that it takes: those that it needs, and all."""
    every = sound.parameters.values()
    for some in [each for each in every if each.default is Parameter.empty], every:
        named = {each.name: each for each in some if each.kind is Parameter.KEYWORD_ONLY}
        yield [each for each in some if each.name not in named], named
