"""A forked process, and the clients that it has inherited from its parent."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKED = "the client belongs to the process that this one was forked from: open another one here"
PROGRAM = """
import os, signal, sys, threading
from kdist import Admin, Consumer, Producer, SimpleConsumer, TopicPartition
client = {client}
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
        {call}
    except Exception as error:
        print(type(error).__name__, error, sep=": ")
    client.close()
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(child, 0)[1])
client.close()
"""


@pytest.mark.parametrize(
    ("client", "call", "error"),
    [
        ("Producer(bootstrap_servers='b:1')", "client.send('t', b'v')", "ProducerClosed"),
        ("Producer(bootstrap_servers='b:1')", "client.send_many('t', [b'v'])", "ProducerClosed"),
        (
            "Producer(bootstrap_servers='b:1')",
            "client.send_many('t', [b'v'], keys=[b'k'])",
            "ProducerClosed",
        ),
        ("Consumer('b:1')", "client.poll()", "UserError"),
        ("Consumer('b:1')", "next(iter(client))", "UserError"),
        ("Consumer('b:1')", "client.assign([TopicPartition('t', 0)])", "UserError"),
        ("Admin('b:1')", "client.list_topics()", "UserError"),
        (
            "SimpleConsumer('b', 1)",
            "client.get_offsets_before('t', 0, -1, max_offsets=1)",
            "UserError",
        ),
    ],
)
def test_a_client_of_the_parent_process_is_refused_and_nothing_hangs(
    client: str, call: str, error: str
) -> None:
    program = PROGRAM.format(client=client, call=call)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, timeout=60
    )
    assert done.stdout.decode().splitlines() == [f"{error}: {FORKED}", "0"], done.stderr.decode()
