"""What holds for every suite: how hypothesis searches, that Ctrl-C is heard, what is garbage."""

import gc
import os
import signal
from collections.abc import Generator

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
