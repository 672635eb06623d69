"""Clients left open, forked, or used as the program ends: an error, and no wait without end.

What a producer still sends as its program ends is in `test_integration_producer.py`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kdist import Admin, Consumer, Producer
from kdist.classic import SimpleConsumer
from kdist.client.background import BackgroundLoop
from kdist.client.producer import at_exit
from kdist.client.producer.batch import PartitionQueue, ProducerBatch
from kdist.client.producer.faults import ProducerClosed
from kdist.client.producer.results import Sent
from kdist.errors import UserError
from tests.examples import first_of
from tests.unit.client.producer_world import FINE, Fault, Scene, play
from tests.unit.client.test_client_producer_interrupting import at_once

pytestmark = pytest.mark.played(by=play)

CLIENTS: list[Callable[[], Any]] = [
    lambda: Producer(bootstrap_servers="127.0.0.1:1"),
    lambda: Consumer("127.0.0.1:1"),
    lambda: Consumer("127.0.0.1:1", group_id="g"),
    lambda: SimpleConsumer("127.0.0.1", 1),
    lambda: Admin("127.0.0.1:1"),
]

ENDING_PROGRAM = """
from kdist import Admin, Consumer, Producer, TopicPartition
from kdist.classic import SimpleConsumer
class Application:
    def __init__(self):
        self.client = {client}
    def __del__(self):
        try:
            {call}
        except Exception as error:
            print(type(error).__name__, error, sep=": ")
        self.client.close()
        print("closed")
application = Application()
"""
ENDING = "UserError: the program is ending: its clients have stopped"
ENDING_CASES = [
    ("Producer('b:1')", "self.client.flush()", []),
    ("Consumer('b:1')", "self.client.poll()", [ENDING]),
    ("Consumer('b:1')", "self.client.assign([TopicPartition('t', 0)])", [ENDING]),
    ("Admin('b:1')", "self.client.list_topics()", [ENDING]),
    ("SimpleConsumer('b', 1)", "self.client.get_offsets_before('t', 0, -1)", [ENDING]),
]

FORKED = "the client belongs to the process that this one was forked from: open another one here"
PRODUCER, CONSUMER, ADMIN = "Producer(bootstrap_servers='b:1')", "Consumer('b:1')", "Admin('b:1')"
FORKED_CASES = [
    (PRODUCER, "client.send('t', b'v')", "ProducerClosed"),
    (PRODUCER, "client.send_many('t', [b'v'])", "ProducerClosed"),
    (PRODUCER, "client.send_many('t', [b'v'], keys=[b'k'])", "ProducerClosed"),
    (CONSUMER, "client.poll()", "UserError"),
    (CONSUMER, "next(iter(client))", "UserError"),
    (CONSUMER, "client.assign([TopicPartition('t', 0)])", "UserError"),
    (ADMIN, "client.list_topics()", "UserError"),
    (
        "SimpleConsumer('b', 1)",
        "client.get_offsets_before('t', 0, -1, max_offsets=1)",
        "UserError",
    ),
]
# One process plays all cases in turn, since to import the clients takes most of the time.
FORKED_PROGRAM = """
import os, signal, sys, threading
from kdist import Admin, Consumer, Producer, TopicPartition
from kdist.classic import SimpleConsumer
def play(number, client, call):
    held, over = threading.Event(), threading.Event()
    def hold():
        with getattr(client, "_lock", threading.Lock()):  # as by a thread that sends
            held.set()
            over.wait()
    threading.Thread(target=hold).start()
    held.wait()
    child = os.fork()
    over.set()
    if child == 0:
        signal.alarm(20)
        try:
            call(client)
        except Exception as error:
            print(f"{number} {type(error).__name__}: {error}")
        client.close()
        sys.stdout.flush()
        os._exit(0)
    print(number, os.waitpid(child, 0)[1], flush=True)
    client.close()
"""


@pytest.fixture(scope="module")
def told_of_forks() -> list[str]:
    """What each case's child and then its parent say, behind the case's number."""
    program = FORKED_PROGRAM
    for number, (client, call, _) in enumerate(FORKED_CASES):
        program += f"play({number}, {client}, lambda client: {call})\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=90
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("make", CLIENTS)
def test_a_client_that_is_left_unclosed_gives_a_resource_warning(make: Callable[[], Any]) -> None:
    clients = [make()]
    background, name = clients[0]._background, type(clients[0]).__name__
    with pytest.warns(ResourceWarning, match=f"unclosed kdist.{name}"):
        clients.clear()
    background.stop()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", CLIENTS)
def test_a_closed_client_gives_no_warning(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what earlier tests left open is not this client's
    client = make()
    client.close()
    del client
    gc.collect()


async def left_open(scene: Scene, fault: Fault) -> None:
    scene.brokers.fault = lambda *_: fault
    producer = await scene.producer(client_id="forgetful", linger_ms=0).start()
    for number in range(3):
        await producer.send("t", b"%d" % number)
    await asyncio.sleep(1)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [each.getMessage() for each in caplog.records if each.name == at_exit.logger.name]


def test_records_left_unacknowledged_when_the_loop_ended_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gc.collect()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        play(lambda scene: left_open(scene, Fault(delay_s=9.0)))
        (line,) = told(caplog)
    assert line == (
        "forgetful was not closed: 3 of its records were not acknowledged, and may be lost; "
        "use `with`, or close it"
    )


def test_a_producer_that_owes_nothing_or_was_closed_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def closed(scene: Scene) -> None:
        async with scene.producer(linger_ms=0) as producer:
            await producer.send("t", b"v")

    gc.collect()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        play(lambda scene: left_open(scene, FINE))
        play(closed)
        assert told(caplog) == []


def test_a_lock_that_is_never_released_does_not_delay_the_exit() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with producer._lock:
            held.set()
            over.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    held.wait()
    assert producer._core.count_unsettled() == 0
    over.set()
    holding.join()
    producer.close()


def test_a_copy_in_another_process_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    class Copy:
        process = os.getpid() + 1

        def count_unsettled(self) -> int:
            raise AssertionError("its lock may be held for ever")

    at_exit.warn_of_loss(Copy())  # type: ignore[arg-type]
    assert told(caplog) == []


@pytest.mark.parametrize(
    "case", first_of(ENDING_CASES, 2), ids=[call for _, call, _ in ENDING_CASES]
)
def test_a_client_used_by_del_at_interpreter_exit_does_not_hang(
    case: tuple[str, str, list[str]],
) -> None:
    """Its thread has been ended by then, in the middle of whatever it did."""
    client, call, said = case
    program = ENDING_PROGRAM.format(client=client, call=call)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=60
    )
    assert done.stdout.decode().splitlines() == [*said, "closed"], done.stderr.decode()


async def test_a_result_cannot_be_waited_for_on_the_loop_that_delivers_it(scene: Scene, /) -> None:
    async with scene.producer() as producer:
        sent = await producer.send("t", b"v")
        with pytest.raises(UserError, match="cannot wait for it: await it"):
            sent.result()
        assert (await sent) == sent.result()


async def test_a_forked_process_does_not_wait_for_its_parents_records(scene: Scene, /) -> None:
    async with scene.producer(linger_ms=1000) as producer:
        await producer.send_and_wait("t", b"before")
        sent = await producer.send("t", b"v")
        accumulator = producer._started.accumulator
        topics = dict(accumulator.topics)
        accumulator.abandon("another process's")
        accumulator.topics.update(topics)  # as this is none, and the producer is closed
        with pytest.raises(ProducerClosed, match="another process's"):
            sent.result()


async def test_a_forked_process_does_not_wait_for_a_record_that_no_queue_has(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene.producer() as producer:
        core = producer._started
        with core.accumulator.lock:
            sent = at_once(producer.send("t", b"v"))  # inside another call: for the loop to add
        with monkeypatch.context() as patch:
            patch.setattr(core, "process", core.process + 1)
            with pytest.raises(ProducerClosed, match="forked from"):
                sent.result()
        assert (await sent).offset == 0


@pytest.mark.parametrize("timeout", [float("inf"), 1e12])
def test_a_results_timeout_may_be_of_any_length(timeout: float) -> None:
    batch = ProducerBatch(PartitionQueue("t", 0, 1, lambda _: answered.set()), 1, 0.0, 7)
    batch.values.append(b"v")
    answered = threading.Event()

    def answer() -> None:
        answered.wait()
        batch.base_offset, batch.is_done = 3, True
        batch.call_back()

    threading.Thread(target=answer).start()
    assert Sent(batch, 0).result(timeout).offset == 3


@pytest.mark.parametrize(
    "number", range(len(FORKED_CASES)), ids=[call for _, call, _ in FORKED_CASES]
)
def test_a_client_of_the_parent_process_is_refused_and_nothing_hangs(
    number: int, told_of_forks: list[str]
) -> None:
    error = FORKED_CASES[number][2]
    found = [line for line in told_of_forks if line.startswith(f"{number} ")]
    assert found == [f"{number} {error}: {FORKED}", f"{number} 0"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_exits_does_not_leave_callers_waiting(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    background = BackgroundLoop("test")

    async def work() -> str:
        return "done"

    async def leave() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise error

    def begin() -> None:
        tasks.append(background.loop.create_task(leave()))
        raise error

    tasks: list[asyncio.Task[None]] = []
    background.loop.call_soon_threadsafe(begin)
    with ThreadPoolExecutor(1) as thread:
        try:
            assert thread.submit(background.run, work()).result(60) == "done"
        finally:
            background.stop()
    assert isinstance(tasks[0].exception(), error)
    assert background.loop.is_closed()
    assert caplog.text.count(f"a callback raised {error.__name__}, which ends no program") == 2
