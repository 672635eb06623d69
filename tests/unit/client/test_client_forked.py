"""A forked process, and the clients that it has inherited from its parent."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKED = "the client belongs to the process that this one was forked from: open another one here"
PRODUCER, CONSUMER, ADMIN = "Producer(bootstrap_servers='b:1')", "Consumer('b:1')", "Admin('b:1')"
CASES = [
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
PROGRAM = """
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
def told() -> list[str]:
    """What each case's child and then its parent say, behind the case's number."""
    program = PROGRAM
    for number, (client, call, _) in enumerate(CASES):
        program += f"play({number}, {client}, lambda client: {call})\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=90
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[call for _, call, _ in CASES])
def test_a_client_of_the_parent_process_is_refused_and_nothing_hangs(
    number: int, told: list[str]
) -> None:
    error = CASES[number][2]
    found = [line for line in told if line.startswith(f"{number} ")]
    assert found == [f"{number} {error}: {FORKED}", f"{number} 0"]
