"""Every unit test fails in which a callback of an event loop takes long, each time it is run.

What happens once in a process (imports, codecs made on first use) is no fault, and neither is a
busy machine: a test in which one takes long runs again. So a test that shares more than a process
with others, such as a broker for all of a file, is not judged: it would find what it has left. Nor
is one of a mutant, each call of which takes a detour.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from kdist.errors import ApiError, Error
from tests.unit import slow_callbacks

if TYPE_CHECKING:
    from tests.simulator.cluster import Cluster

_TRIES = 3
_is_wrong = pytest.StashKey[bool]()


def pytest_configure() -> None:
    slow_callbacks.install()


@pytest.fixture(autouse=True)
def _callbacks_are_short(request: pytest.FixtureRequest) -> Iterator[None]:
    slow_callbacks.slow.clear()
    yield
    if not _may_run_again(request.node) or "MUTANT_UNDER_TEST" in os.environ:
        return
    test = request.node.nodeid.removeprefix("tests/unit/")
    wrong = slow_callbacks.judge(test, slow_callbacks.slow)
    request.node.stash[_is_wrong] = bool(wrong)
    assert not wrong, wrong


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Brokers in virtual time, none started, by the test's parameter `seed` if it has one."""
    from tests.simulator.cluster import Cluster  # the tests of a parser need not load a broker

    return Cluster(request.getfixturevalue("seed") if "seed" in request.fixturenames else 0)


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Cycles stay, as they long do in a broker."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def uncollected(without_collector: None) -> Callable[[Error], list[ApiError]]:
    """The errors of a code that only the collector would free, without those of other tests."""

    def found() -> list[ApiError]:
        return [each for each in gc.get_objects() if isinstance(each, ApiError)]

    earlier = found()
    return lambda code: [
        each
        for each in found()
        if each.error is code and not any(each is other for other in earlier)
    ]


def _may_run_again(item: pytest.Function) -> bool:
    """Whether all of its own fixtures are made anew for each run."""
    found = (each[-1] for each in item._fixtureinfo.name2fixturedefs.values())
    return all(each.scope == "function" or not each.baseid for each in found)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, pytest.Function):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(_TRIES):
        item.stash[_is_wrong] = False
        item._initrequest()  # its fixtures are made anew
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not item.stash[_is_wrong]:
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
