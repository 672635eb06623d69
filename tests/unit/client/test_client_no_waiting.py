"""Waits that would never end: at interpreter exit, on the producer's own loop, in a forked child.

Also waits that are longer than a thread can wait.
"""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from kdist.client.producer.batch import PartitionQueue, ProducerBatch
from kdist.client.producer.faults import ProducerClosed
from kdist.client.producer.results import Sent
from kdist.errors import UserError
from tests.examples import first_of
from tests.unit.client.producer_world import Scene, play

PROGRAM = """
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
CASES = [
    ("Producer('b:1')", "self.client.flush()", []),
    ("Consumer('b:1')", "self.client.poll()", [ENDING]),
    ("Consumer('b:1')", "self.client.assign([TopicPartition('t', 0)])", [ENDING]),
    ("Admin('b:1')", "self.client.list_topics()", [ENDING]),
    ("SimpleConsumer('b', 1)", "self.client.get_offsets_before('t', 0, -1)", [ENDING]),
]


@pytest.mark.parametrize("case", first_of(CASES, 2), ids=[call for _, call, _ in CASES])
def test_a_client_used_by_del_at_interpreter_exit_does_not_hang(
    case: tuple[str, str, list[str]],
) -> None:
    """Its thread has been ended by then, in the middle of whatever it did."""
    client, call, said = case
    program = PROGRAM.format(client=client, call=call)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=60
    )
    assert done.stdout.decode().splitlines() == [*said, "closed"], done.stderr.decode()


def test_a_result_cannot_be_waited_for_on_the_loop_that_delivers_it() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            sent = await producer.send("t", b"v")
            with pytest.raises(UserError, match="cannot wait for it: await it"):
                sent.result()
            assert (await sent) == sent.result()

    play(work)


def test_a_forked_process_does_not_wait_for_its_parents_records() -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=1000) as producer:
            await producer.send_and_wait("t", b"before")
            sent = await producer.send("t", b"v")
            accumulator = producer._started.accumulator
            topics = dict(accumulator.topics)
            accumulator.abandon("another process's")
            accumulator.topics.update(topics)  # as this is none, and the producer is closed
            with pytest.raises(ProducerClosed, match="another process's"):
                sent.result()

    play(work)


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
