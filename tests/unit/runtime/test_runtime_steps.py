"""Long work in steps: one in each turn of the loop, in turns, and no more jobs than may be."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

from kdist.runtime.steps import LongWork, Steps, in_thread, run_steps
from tests.stepped_process import SteppedProcess

Jobs = list[str]


class Unpacked:
    """What a thread has in its locals."""


def steps(name: str, seen: Jobs, count: int, result: str = "done") -> Steps[str]:
    for number in range(count):
        seen.append(f"{name}{number}")
        yield None
    return result


def threaded(seen: Jobs, work: Callable[[], str]) -> Steps[str]:
    seen.append("before")
    found = yield from in_thread(work)
    seen.append("after")
    return found


def raised(error: BaseException) -> str:
    raise error


def test_one_step_is_done_in_each_turn_of_the_loop_and_jobs_take_turns() -> None:
    tasks, seen, ended = SteppedProcess(), Jobs(), Jobs()
    work = LongWork(tasks, jobs_max=2)
    work.begin(steps("a", seen, 3, "a"), ended.append, raised)
    work.begin(steps("b", seen, 2, "b"), ended.append, raised)
    assert (seen, ended) == (["a0", "b0"], [])
    tasks.call_soon(lambda: seen.append("other"))
    tasks.run_until_idle()
    assert seen == ["a0", "b0", "a1", "other", "b1", "a2"]
    assert (ended, work.under_way) == (["b", "a"], 0)


def test_what_is_short_is_done_at_once() -> None:
    ended = Jobs()
    work = LongWork(SteppedProcess(), jobs_max=1)
    work.begin(steps("a", [], 0), ended.append, raised)
    assert ended == ["done"]


def test_a_job_more_than_may_be_waits_unbegun_and_in_order() -> None:
    tasks, seen, ended = SteppedProcess(), Jobs(), Jobs()
    work = LongWork(tasks, jobs_max=1)
    for name in "abc":
        work.begin(steps(name, seen, 2, name), ended.append, raised)
    assert seen == ["a0"]
    tasks.run_until_idle()
    assert seen == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert (ended, work.under_way) == (["a", "b", "c"], 0)


def test_a_thread_does_what_is_yielded_and_the_job_goes_on_with_its_result() -> None:
    tasks, seen, ended = SteppedProcess(), Jobs(), Jobs()
    work = LongWork(tasks, jobs_max=1)
    work.begin(threaded(seen, lambda: "found"), ended.append, raised)
    assert seen == ["before"]
    tasks.run_until_idle()
    assert (seen, ended) == (["before", "after"], ["found"])


def test_what_a_thread_raises_is_raised_in_the_job_and_then_goes_to_its_owner() -> None:
    tasks, seen, ended = SteppedProcess(), Jobs(), Jobs()
    heard: list[BaseException] = []
    work = LongWork(tasks, jobs_max=1)
    work.begin(threaded(seen, lambda: raised(ValueError())), ended.append, heard.append)
    work.begin(steps("b", seen, 1), ended.append, heard.append)
    tasks.run_until_idle()
    assert (seen, ended) == (["before", "b0"], ["done"])
    assert [type(error) for error in heard] == [ValueError]
    assert work.under_way == 0


def test_what_a_thread_had_unpacked_when_it_raised_is_freed_without_the_garbage_collector(
    without_collector: None,
) -> None:
    tasks, ended, heard = SteppedProcess(), Jobs(), Jobs()
    held: list[weakref.ref[Unpacked]] = []

    def unpack() -> str:
        unpacked = Unpacked()
        held.append(weakref.ref(unpacked))
        raise ValueError

    def hear(error: BaseException) -> None:
        heard.append(type(error).__name__)

    LongWork(tasks, jobs_max=1).begin(threaded([], unpack), ended.append, hear)
    tasks.run_until_idle()
    assert (heard, ended) == (["ValueError"], [])
    assert held[0]() is None


def test_a_job_that_another_ends_may_be_begun_by_what_its_end_calls() -> None:
    tasks, seen, ended = SteppedProcess(), Jobs(), Jobs()
    work = LongWork(tasks, jobs_max=1)

    def again(result: str) -> None:
        ended.append(result)
        if len(ended) < 3:
            work.begin(steps("b", seen, 1), again, raised)

    work.begin(steps("a", seen, 1), again, raised)
    tasks.run_until_idle()
    assert ended == ["done"] * 3


def test_without_a_pause_all_steps_are_run_where_they_are() -> None:
    seen = Jobs()
    assert run_steps(steps("a", seen, 2)) == "done"
    assert run_steps(threaded(seen, lambda: "found")) == "found"
    with pytest.raises(ValueError, match="broken"):
        run_steps(threaded(seen, lambda: raised(ValueError("broken"))))
