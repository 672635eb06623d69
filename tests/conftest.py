"""What holds for every suite: who runs coroutines, how hypothesis searches, what is garbage."""

import asyncio
import functools
import gc
import inspect
import os
import signal
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

# No deadline: a busy host would fail a property for being slow. In CI the same examples each time,
# so that a failure there is about the change; at a desk new ones, so that a search goes on.
# `make check` has the profile `quick`, a fifth of the examples that `make test` searches.
EVERYWHERE = {"deadline": None, "derandomize": "CI" in os.environ}
hypothesis.settings.register_profile("kdist", **EVERYWHERE)
hypothesis.settings.register_profile("quick", max_examples=20, stateful_step_count=30, **EVERYWHERE)
hypothesis.settings.load_profile("kdist")

# A shell without job control has what it starts in the background ignore Ctrl-C, and so would every
# process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and modules stay to the end: no search for garbage goes through all of them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine is run by the first of its fixtures that has `run`, or by asyncio.

    What it takes by position only is brought by the function of its mark `played(by=play, ...)`:
    `play(test, ...)` runs it, and pytest has filled in the rest.
    """
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    mark = pyfuncitem.get_closest_marker("played")
    runners: list[Any] = [each for each in fixtures.values() if hasattr(each, "run")]
    if mark and not (runners and len(fixtures) == len(inspect.signature(test).parameters)):
        settings = dict(mark.kwargs)
        settings.pop("by")(functools.partial(test, **fixtures), **settings)
    else:
        (*runners, asyncio)[0].run(test(**fixtures))
    return True
