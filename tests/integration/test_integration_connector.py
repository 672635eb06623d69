"""Connectors on a real ZooKeeper and a real broker: streams, sessions that end, servers that go."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kdist.classic import connector
from kdist.errors import UserError
from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.connector_readers import HASTY, Reader
from tests.integration.consumer_members import WAIT_S, create, produce
from tests.integration.zookeeper_server import ZooKeeperHost

PATIENT = HASTY | {"consumer.timeout.ms": WAIT_S * 1000}


@pytest.fixture(scope="module")
def connect(zookeeper: ZooKeeperHost) -> str:
    return f"{zookeeper.settings.address}/connectors"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, connect: str) -> Iterator[BrokerProcess]:
    with broker_processes(1, tmp_path_factory.mktemp("broker"), connect) as (one,):
        yield one


@pytest.fixture
def tree(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-z0-9]+", "-", request.node.name)
    create(broker.address, name, 4)
    return name


def test_streams_of_two_connectors_share_a_topic(
    broker: BrokerProcess, connect: str, topic: str
) -> None:
    with Reader(connect, topic, topic, streams=2) as one, Reader(connect, topic, topic) as other:
        settled(lambda: (len(one.owned), len(other.owned)) == (3, 1))
        values = produce(broker.address, topic, 2_000)
        settled(lambda: len(one.messages) + len(other.messages) == len(values))
        assert {*one.values, *other.values} == set(values)
        assert {message.partition for message in other.messages} == {3}


def test_committed_messages_are_not_returned_again(
    broker: BrokerProcess, connect: str, topic: str, tree: KazooClient
) -> None:
    values = produce(broker.address, topic, 100)
    config = PATIENT | {"zookeeper.connect": connect, "group.id": topic}
    with connector.create(config | {"auto.commit.enable": False}) as first:
        (stream,) = first.create_message_streams({topic: 1})[topic]
        found = [next(stream) for _ in range(40)]
        first.commit_offsets()
        found += [next(stream) for _ in range(10)]
    paths = [f"/consumers/{topic}/offsets/{topic}/{number}" for number in range(4)]
    assert sum(int(tree.get(path)[0]) for path in paths) == 40
    with Reader(connect, topic, topic) as second:
        settled(lambda: len(second.messages) == 60)
        again = {message.payload() for message in found[40:]}
        given = {message.payload() for message in found[:40]}
        assert again <= set(second.values) == set(values) - given


def test_shutdown_ends_a_stream_that_waits_and_commits_what_it_gave(
    broker: BrokerProcess, connect: str, topic: str, tree: KazooClient
) -> None:
    produce(broker.address, topic, 20)
    reader = Reader(connect, topic, topic, consumer_timeout_ms=-1)
    settled(lambda: len(reader.messages) == 20)
    reader.leave()
    paths = [f"/consumers/{topic}/offsets/{topic}/{number}" for number in range(4)]
    assert sum(int(tree.get(path)[0]) for path in paths) == 20
    assert tree.get_children(f"/consumers/{topic}/ids") == []
    assert tree.get_children(f"/consumers/{topic}/owners/{topic}") == []


def test_the_message_at_hand_counts_unless_an_exception_is_handled(
    broker: BrokerProcess, connect: str, topic: str, tree: KazooClient
) -> None:
    produce(broker.address, topic, 5, partition=0)
    config = PATIENT | {"zookeeper.connect": connect, "group.id": topic}
    path = f"/consumers/{topic}/offsets/{topic}/0"

    def take_two() -> None:
        with connector.create(config) as one:
            (stream,) = one.create_message_streams({topic: 1})[topic]
            assert [next(stream).offset, next(stream).offset] == [0, 1]

    def fail_at_the_next() -> None:
        one = connector.create(config)
        try:
            (stream,) = one.create_message_streams({topic: 1})[topic]
            raise ValueError(next(stream).offset)
        finally:
            one.shutdown()

    take_two()
    assert int(tree.get(path)[0]) == 2
    with pytest.raises(ValueError, match="2"):
        fail_at_the_next()
    assert int(tree.get(path)[0]) == 2


def test_a_session_that_ends_is_followed_by_another(
    broker: BrokerProcess, connect: str, topic: str, tree: KazooClient
) -> None:
    produce(broker.address, topic, 20)
    with Reader(connect, topic, topic, auto_commit_interval_ms=3_600_000) as reader:
        settled(lambda: len(reader.messages) == 20)
        zk = reader.connector._context.zk
        before = zk.session_id
        session = zk._session  # type: ignore[attr-defined]
        usurper = KazooClient(connect, client_id=session.client.client_id)
        usurper.start()
        usurper.stop()
        usurper.close()
        settled(lambda: len(reader.messages) == 40)  # nothing of it was committed
        assert zk.session_id != before
        assert len(tree.get_children(f"/consumers/{topic}/ids")) == 1


def test_streams_stop_while_zookeeper_is_frozen_and_resume(
    broker: BrokerProcess, connect: str, topic: str, zookeeper: ZooKeeperHost
) -> None:
    with Reader(connect, topic, topic) as reader:
        settled(lambda: len(reader.owned) == 4)
        produce(broker.address, topic, 10)
        settled(lambda: len(reader.messages) == 10)
        zookeeper.pause()
        try:
            settled(lambda: reader.owned == [])
        finally:
            zookeeper.go_on()
        values = produce(broker.address, topic, 10, start=10)
        settled(lambda: set(values) <= set(reader.values))


def test_a_filter_finds_topics_created_later(
    broker: BrokerProcess, connect: str, topic: str, tree: KazooClient
) -> None:
    produce(broker.address, topic, 10)
    config = HASTY | {"zookeeper.connect": connect, "group.id": topic}
    found: list[bytes] = []
    with connector.create(config) as one:
        streams = one.create_message_streams_by_filter(connector.Whitelist(f"{topic}.*"), 2)

        def has(count: int) -> bool:
            for stream in streams:
                try:
                    found.extend(message.payload() for message in stream)
                except connector.ConsumerTimeout:
                    continue
            return len(found) == count

        settled(lambda: has(10))
        create(broker.address, f"{topic}-later", 2)
        produce(broker.address, f"{topic}-later", 10, start=10)
        settled(lambda: has(20))
        (member,) = tree.get_children(f"/consumers/{topic}/ids")
        assert member.startswith(f"{topic}_")
        registration = json.loads(tree.get(f"/consumers/{topic}/ids/{member}")[0])
        assert registration["pattern"] == "white_list"
        assert registration["subscription"] == {f"{topic}.*": 2}


def test_a_slow_stream_is_not_read_far_ahead(
    broker: BrokerProcess, connect: str, topic: str
) -> None:
    for start in range(0, 40, 10):
        for partition in range(4):
            produce(broker.address, topic, 10, partition, start=start)
    config = PATIENT | {"zookeeper.connect": connect, "group.id": topic}
    small = {"fetch.message.max.bytes": 1, "queued.max.message.chunks": 1}
    with connector.create(config | small) as one:
        (stream,) = one.create_message_streams({topic: 1})[topic]
        found = [next(stream)]
        assert len(stream._chunks) <= 4, "a chunk of each partition, on the way when it was full"
        found += [next(stream) for _ in range(159)]
        assert len({(each.partition, each.offset) for each in found}) == 160


def test_the_same_consumer_id_waits_until_the_other_is_gone(
    broker: BrokerProcess, connect: str, topic: str
) -> None:
    produce(broker.address, topic, 10)
    first = Reader(connect, topic, topic, consumer_id="one")
    settled(lambda: len(first.messages) == 10)
    second = Reader(connect, topic, topic, consumer_id="one")
    assert second.owned == []
    first.leave()
    settled(lambda: len(second.owned) == 4)
    second.leave()


def test_a_connectors_errors_say_what_is_wrong(
    broker: BrokerProcess, connect: str, topic: str
) -> None:
    nobody = {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": 500}
    with pytest.raises(UserError, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 within 500 ms"):
        connector.create(HASTY | {"group.id": topic} | nobody)
    one = connector.create(HASTY | {"zookeeper.connect": connect, "group.id": topic})
    one.commit_offsets()  # there is nothing yet
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("1 or more streams, not 0", lambda: one.create_message_streams({topic: 0})),
        (
            "key_decoder is 'utf-8', and must be a callable",
            lambda: one.create_message_streams({topic: 1}, "utf-8"),
        ),  # type: ignore[arg-type]
        ("has no method before_releasing", lambda: one.set_consumer_rebalance_listener(print)),  # type: ignore[arg-type]
    ]
    for sentence, call in wrong:
        with pytest.raises(UserError, match=sentence):
            call()
    one.create_message_streams({topic: 1})
    with pytest.raises(UserError, match="creates its streams once"):
        one.create_message_streams({topic: 1})
    with pytest.raises(UserError, match="set the listener before"):
        one.set_consumer_rebalance_listener(connector.ConsumerRebalanceListener())
    one.shutdown()
    one.shutdown()
    with pytest.raises(UserError, match="is shut down"):
        one.commit_offsets()
    with pytest.raises(UserError, match="is shut down"):
        one.create_message_streams({topic: 1})


def test_an_unclosed_connector_gives_a_resource_warning(
    broker: BrokerProcess, connect: str, topic: str
) -> None:
    left = [connector.create(HASTY | {"zookeeper.connect": connect, "group.id": topic})]
    background, world = left[0]._background, left[0]._context
    with pytest.warns(ResourceWarning, match=r"unclosed kdist\.ConsumerConnector"):
        left.clear()
    background.run(world.zk.close())
    background.stop()


def test_no_thread_is_left(broker: BrokerProcess, connect: str, topic: str) -> None:
    before = threading.active_count()
    Reader(connect, topic, topic).leave()
    settled(lambda: threading.active_count() <= before)


def test_a_program_that_ends_without_a_shutdown_leaves_its_group(
    broker: BrokerProcess, connect: str, topic: str, tree: KazooClient, tmp_path: Path
) -> None:
    produce(broker.address, topic, 5, partition=0)
    program = tmp_path / "sample.py"
    program.write_text(
        "import sys\n"
        "from kdist.classic import connector\n"
        "config = {'zookeeper.connect': sys.argv[1], 'group.id': sys.argv[2],\n"
        "          'auto.offset.reset': 'smallest'}\n"
        "streams = connector.create_message_streams(sys.argv[2], 1, config)\n"
        "for message in streams[0]:\n"
        "    if message.offset == 3:\n"
        "        1 / 0\n"
    )
    done = subprocess.run(
        [sys.executable, str(program), connect, topic],
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert "ZeroDivisionError" in done.stderr
    assert tree.get_children(f"/consumers/{topic}/ids") == []
    assert tree.get(f"/consumers/{topic}/offsets/{topic}/0")[0] == b"3"
