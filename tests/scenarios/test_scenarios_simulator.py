"""A few of the simulator's histories; `make simulate` plays more."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature, signature
from typing import Any

import pytest

from tests.examples import first_of
from tests.simulator.__main__ import options, parsed, script_of
from tests.simulator.bug import Edit, patched, places_of
from tests.simulator.planted import PLANTED
from tests.simulator.playing import run
from tests.simulator.script import Script
from tests.simulator.shrinking import promise, shrink, smaller

TWICE = range(4)
EXPLAINED = (130, 181)  # they broke promises once
ONCE = (*EXPLAINED, *range(TWICE.stop, 100))


@pytest.mark.parametrize("seed", TWICE)
def test_a_random_history_keeps_every_promise_and_can_be_repeated(seed: int) -> None:
    one, two = run(seed), run(seed)
    assert one.violation == "", "\n".join(one.last_events)
    assert one.trace_hash == two.trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(ONCE, 38, others=pytest.mark.stress))
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    outcome = run(seed)
    assert outcome.violation == "", "\n".join(outcome.last_events)


def test_a_planted_bug_is_found() -> None:
    outcomes = (run(seed, "consumers read what is not committed") for seed in range(20))
    assert any(each.violation.startswith(("S16", "S17")) for each in outcomes)


def test_a_history_that_breaks_a_promise_is_made_smaller() -> None:
    bug = "consumers read what is not committed"
    outcomes = (run(seed, bug) for seed in range(20))
    found = next(each for each in outcomes if each.violation and len(each.faults) > 2)
    shortest, script = shrink(found, bug, seconds=10)
    assert len(script.faults) <= 1  # consumers need hardly a fault to read too far
    assert promise(shortest) == promise(found)
    printed = " ".join(options(found.seed, script))
    again = run(found.seed, bug, script_of(parsed(printed.split())))
    assert (again.violation, again.trace_hash) == (shortest.violation, shortest.trace_hash)


def test_the_faults_of_a_history_that_are_played_again_come_again() -> None:
    """Those at moments of the code, too, under the names that the command takes."""
    outcomes = (run(seed) for seed in range(20))
    whole = next(each for each in outcomes if sum("-at-" in name for name in each.faults) > 2)
    printed = " ".join(options(whole.seed, Script(whole.faults)))
    again = run(whole.seed, script=script_of(parsed(printed.split())))
    assert again.faults == whole.faults
    assert again.trace_hash == whole.trace_hash


@pytest.mark.parametrize(
    ("needed", "most_runs"), [(set(), 1), ({3}, 12), ({3, 11}, 40), (set(range(16)), 40)]
)
def test_what_is_not_needed_is_left_out(needed: set[int], most_runs: int) -> None:
    runs = []

    def is_enough(items: list[int]) -> bool:
        runs.append(items)
        return needed <= {*items}

    assert smaller(range(16), is_enough) == sorted(needed)
    assert len(runs) <= most_runs


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_called_as_what_it_replaces(name: str) -> None:
    for bug in places_of(PLANTED[name]):
        if isinstance(bug, Edit):
            continue
        sound = getattr(bug.owner, bug.name)
        with patched(bug):
            planted = getattr(bug.owner, bug.name)
        assert isinstance(sound, property) == isinstance(planted, property)
        if callable(sound):
            for given, named in _calls(signature(sound)):
                signature(planted).bind(*given, **named)  # a TypeError if it takes other arguments


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_line_is_in_the_code_until_the_history_is_over(name: str) -> None:
    for bug in places_of(PLANTED[name]):
        if isinstance(bug, Edit):
            sound = bug.sound.__code__
            with patched(bug):
                planted = bug.sound.__code__
            assert planted is not sound
            assert planted.co_freevars == sound.co_freevars
            assert bug.sound.__code__ is sound


def _calls(sound: Signature) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments that it takes: those that it needs, and all."""
    every = sound.parameters.values()
    for some in [each for each in every if each.default is Parameter.empty], every:
        named = {each.name: each for each in some if each.kind is Parameter.KEYWORD_ONLY}
        yield [each for each in some if each.name not in named], named
