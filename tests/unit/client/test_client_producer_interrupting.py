"""A producer used by what interrupts its own calls: signal handlers, `__del__`, partitioners.

None of them may wait for the call that it interrupts, as that goes on only afterwards.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kdist.client.producer.batch import ProducerBatch
from kdist.client.producer.faults import ProducerClosed
from kdist.client.producer.results import Sent, SentMany
from kdist.client.producer.sync import Producer
from kdist.errors import Error, UserError
from kdist.model import TopicPartition
from kdist.runtime.tick_loop import TickLoop
from tests.examples import first_of
from tests.refusals import refused
from tests.unit.client.producer_world import Scene, play

pytestmark = pytest.mark.played(by=play)

ROOT = Path(__file__).parents[3]
T0 = TopicPartition("t", 0)
ROWS: dict[str, dict[str, Any]] = {
    "short": {},
    "of a key": {"key": b"k"},
    "with more": {"key": b"k", "headers": [("h", b"x")], "timestamp": 5},
}


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that does not suspend, as what interrupts a thread may run it."""
    try:
        work.send(None)
    except StopIteration as last:
        return last.value
    work.close()
    raise AssertionError("it waits, and the call that it interrupts with it")


def interrupted(at: int, by: Callable[[], None], *parts: str) -> Callable[..., Any]:
    """A trace function that calls `by` before the `at`-th line of these parts of the code."""
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in parts):
            return None
        if event == "line":
            left -= 1
            if left == -1:
                sys.settrace(None)
                by()
        return trace

    return trace


@pytest.mark.parametrize("outer", first_of([*ROWS], 1))
@pytest.mark.parametrize("inner", first_of([*ROWS], 2))
def test_a_send_at_any_line_of_another_mixes_nothing_up(outer: str, inner: str) -> None:
    async def work(scene: Scene) -> bool:
        async with scene.producer(linger_ms=5, batch_size=300) as producer:
            await producer.send_and_wait("t", b"0")
            sent = {b"a": await producer.send("t", b"a", **ROWS["with more"])}
            if line % 2:
                sent[b"b"] = await producer.send("t", b"b")
            has_interrupted: list[bytes] = []

            def interrupt() -> None:
                for each in (b"c", b"d"):
                    sent[each] = at_once(producer.send("t", each, **ROWS[inner]))
                    has_interrupted.append(each)

            sys.settrace(interrupted(line // 2, interrupt, "/client/producer/"))
            try:
                sent[b"e"] = await producer.send("t", b"e" * 90, **ROWS[outer])
            finally:
                sys.settrace(None)
            await producer.flush()
            for value, each in sent.items():
                record = scene.brokers.kept[T0].records[(await each).offset]
                assert record.value is not None
                assert record.value[:1] == value
            assert len(scene.brokers.kept[T0].records) == len(sent) + 1
            return bool(has_interrupted)

    line, last = 0, 0
    while line - last < 4:
        if play(work):
            last = line
        line += 1
    assert last > 20


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_a_value_sent_as_its_batch_gets_a_first_key_mixes_nothing_up(
    scene: Scene, /, monkeypatch: pytest.MonkeyPatch, is_bulk: bool
) -> None:
    async with scene.producer(linger_ms=5) as producer:
        await producer.send_and_wait("t", b"0")
        accumulator = producer._started.accumulator
        sent = [await producer.send("t", b"1")]
        withdraw = accumulator.maybe_make_plain

        def interrupted_withdraw(name: str, batch: ProducerBatch) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(accumulator, "maybe_make_plain", withdraw)
                sent.append(at_once(producer.send("t", b"2")))
            withdraw(name, batch)

        with monkeypatch.context() as patch:
            patch.setattr(accumulator, "maybe_make_plain", interrupted_withdraw)
            if is_bulk:
                await producer.send_many("t", [b"3"], keys=[b"k"])
            else:
                await producer.send("t", b"3", key=b"k")
        await asyncio.gather(*sent)
    found = {record.value: record.key for record in scene.brokers.kept[T0].records}
    assert found == {b"0": None, b"1": None, b"2": None, b"3": b"k"}


async def test_a_send_from_inside_is_added_once_the_call_that_it_interrupts_is_over(
    scene: Scene, /
) -> None:
    async with scene.producer() as producer:
        with producer._started.accumulator.lock:
            sent = [at_once(producer.send("t", b"%d" % number)) for number in range(9)]
            many: SentMany = at_once(producer.send_many("t", [b"9", b"10"], keys=[b"k", None]))
            assert not any(each.done() for each in sent)
            assert producer._started.accumulator.topics == {}
        await producer.flush()
        assert [each.result(0).offset for each in sent] == list(range(9))
        assert sum(end - start for start, end in many.result(0)[0]) == 2
    assert scene.brokers.kept[T0].values() == [b"%d" % number for number in range(11)]


async def test_who_awaits_a_record_sent_from_inside_does_not_wait_for_its_linger(
    scene: Scene, /
) -> None:
    async with scene.producer(linger_ms=60_000) as producer:
        with producer._started.accumulator.lock:
            sent = at_once(producer.send("t", b"a"))
        assert (await sent).offset == 0
        assert scene.clock.monotonic_ns() / 1e9 < 1


async def test_what_is_wrong_with_a_record_sent_from_inside_is_its_futures_error(
    scene: Scene, /
) -> None:
    async with scene.producer(partitioner=lambda _key, _count: 5) as producer:
        with producer._started.accumulator.lock:
            sent = [at_once(producer.send("t", b"a")), at_once(producer.send("t", b"b", None))]
            sent.append(at_once(producer.send("t", b"c", partition=0)))
        with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "the partitioner chose 5"):
            await sent[1]
        assert (await sent[2]).offset == 0


async def test_closing_delivers_what_was_sent_from_inside(scene: Scene, /) -> None:
    producer = await scene.producer().start()
    with producer._started.accumulator.lock:
        sent = at_once(producer.send("t", b"a"))
    await producer.close()
    assert sent.result(0).offset == 0
    with producer._started.accumulator.lock, pytest.raises(ProducerClosed):
        at_once(producer.send("t", b"b"))


async def test_closing_in_no_time_fails_what_was_sent_from_inside(scene: Scene, /) -> None:
    producer = await scene.producer().start()
    with producer._started.accumulator.lock:
        sent = at_once(producer.send("t", b"a"))
    await producer.close(0)
    await asyncio.sleep(0)
    with pytest.raises(ProducerClosed):
        await sent


async def test_a_result_waited_for_from_inside_is_refused(scene: Scene, /) -> None:
    async with scene.producer() as producer:
        sent = await producer.send("t", b"a")
        with (
            producer._started.accumulator.lock,
            pytest.raises(UserError, match="interrupts a `send` of the same producer"),
        ):
            sent.result()
        assert (await sent).offset == 0


def test_a_flush_from_inside_is_refused() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1") as producer:
        with producer._lock, pytest.raises(UserError, match="cannot wait"):
            producer.flush()
        producer.flush()


def test_a_close_from_inside_begins_and_the_next_one_waits_for_its_end() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    with producer._lock:
        producer.close(5)
        producer.close()
        assert not producer._core.is_closed
    producer.close()
    assert producer._core.is_closed
    assert not producer._background._thread.is_alive()
    with pytest.raises(ProducerClosed):
        producer.send("t", b"a")
    producer.flush()
    producer.close()


async def test_a_second_close_waits_for_the_first(scene: Scene, /) -> None:
    producer = await scene.producer(linger_ms=1_000).start()
    sent = await producer.send("t", b"a")
    first = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    await producer.close()
    assert sent.done()
    await first


@pytest.mark.played(by=play, partitions=2)
async def test_a_partitioner_may_send(scene: Scene, /) -> None:
    seen: list[Sent] = []

    def telling(key: bytes | None, count: int) -> int:
        if key != b"told":
            seen.append(at_once(producer.send("t", b"asked for %r" % key, key=b"told")))
        return count - 1

    async with scene.producer(partitioner=telling, linger_ms=0) as producer:
        assert (await producer.send_and_wait("t", b"0", key=b"told")).partition == 1
        assert (await producer.send_and_wait("t", b"1", key=b"k")).offset == 2
        await (await producer.send_many("t", [b"2"], keys=[b"j"]))
        assert [(await each).offset for each in seen] == [1, 3]


@pytest.mark.parametrize("line", range(12))
def test_whoever_interrupts_a_wake_up_wakes_the_loop(line: int) -> None:
    """At each line: who waits for the loop in there would else wait for ever."""
    loop = TickLoop()
    heard: list[str] = []
    bells: list[bytes | None] = []
    ring = loop.when_rung(lambda: heard.append("rung"))

    def interrupt() -> None:
        loop.call_soon_threadsafe(heard.append, "soon")
        bells.append(loop._bell.read(8))
        loop._bell.write((1).to_bytes(8, sys.byteorder))

    async def hear() -> None:
        while "rung" not in heard:
            await asyncio.sleep(0)

    sys.settrace(interrupted(line, interrupt, "tick_loop.py"))
    ring()
    sys.settrace(None)
    assert None not in bells
    loop.run_until_complete(hear())
    loop.close()


async def test_a_kick_that_interrupts_another_is_heard(scene: Scene, /) -> None:
    async with scene.producer() as producer:
        await producer.send_and_wait("t", b"a")
        sender = producer._started._sender
        ring, rung = sender._ring, []

        def interrupted_ring() -> None:
            if not rung:
                rung.append("outer")
                sender.kick()
                assert len(rung) == 2
            else:
                rung.append("inner")
            ring()

        sender._ring = interrupted_ring
        sender.kick()
        sender.kick()
        assert rung == ["outer", "inner"]


SIGNALLED = """
import asyncio, gc, logging, signal, sys, threading
from kdist import Producer, UserError
from kdist.model import TopicPartition
from tests.unit.client import producer_world as world

class Host:
    name = "127.0.0.1"
    async def listen(self, make, _host, _port):
        server = await loop.create_server(make, self.name, 0)
        world.PORT = server.sockets[0].getsockname()[1]

class Network:
    def __init__(self, loop): self.loop = loop
    def host(self, _name): return Host()

loop = asyncio.new_event_loop()
brokers = world.Brokers(Network(loop), 1, 1)
loop.run_until_complete(brokers.start())
threading.Thread(target=loop.run_forever, daemon=True).start()
producer = Producer(f"127.0.0.1:{world.PORT}", linger_ms=1, batch_size=2_000)
producer.send("t", b"first").result(20)
sent, refused, count, closed = {}, [], 0, []

def send(value):
    sent[value] = producer.send("t", value, key=(None, b"k")[len(sent) % 2])

def flush():
    try:
        producer.flush(20)
    except UserError as error:
        refused.append(error)

def close():
    if not closed:
        closed.append(producer.send("t", b"last"))
        producer.close(20)

class Logged:
    def __init__(self): self.itself = self
    def __del__(self): act("send")

def act(kind):
    global count
    count += 1
    {"send": lambda: send(b"inner %d" % count), "flush": flush,
     "close": lambda: count > 50 and close(), "del": Logged}[kind]()

kind = sys.argv[1]
def heard(*_):
    if count >= 300:
        signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        act(kind)
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
if kind == "del":
    gc.set_threshold(7)
signal.signal(signal.SIGALRM, heard)
signal.setitimer(signal.ITIMER_REAL, 0.0002)
number = 0
try:
    while count < 300 and not closed:
        number += 1
        send(b"outer %d" % number)
except Exception as error:
    assert type(error).__name__ == "ProducerClosed" and closed, error
signal.setitimer(signal.ITIMER_REAL, 0)
gc.set_threshold(0)
producer.close(20)
kept = brokers.kept[TopicPartition("t", 0)].values()
for value, each in sent.items():
    if not closed or each.exception(0) is None:
        assert kept[each.result(20).offset] == value
assert len(set(kept)) == len(kept)
assert not closed or closed[0].exception(0) is None
print("all is well")
"""


@pytest.mark.parametrize("kind", first_of(["send", "close", "flush", "del"], 2))
def test_signal_handlers_may_use_the_producer_that_they_interrupt(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, kind],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.stdout == "all is well\n", done.stderr
