"""An agent against brokers that come, go and refuse: what it publishes, keeps and drops."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from kdist.agent.agent import Agent, AgentContext
from kdist.agent.publisher import Publisher
from kdist.agent.queue import Queue, Queued
from kdist.client.cluster import Cluster, parse_addresses
from kdist.client.produce_once import Batches
from kdist.config.agent import AgentSettings, load_agent
from kdist.config.faults import ConfigError
from kdist.errors import ApiError, Error
from kdist.metrics.agent import AgentMetrics
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.records.build import read_batch
from kdist.runtime.files import Files
from kdist.runtime.host import Look
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock
from tests.unit.agent.test_agent_record import looked
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster

NOBODY = "127.0.0.1:1"
METRICS_FILE = "/run/kdist.prom"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


def settings(brokers: str, **given: object) -> AgentSettings:
    text = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in given.items())
    return load_agent(f"bootstrap.servers={brokers}\nagent.interval.ms=100\n{text}", "x")


def agent_of(
    given: AgentSettings, files: Files | None = None, look: Callable[[int], Look] | None = None
) -> Agent:
    """An agent on a host where nothing but the clock changes."""
    clock = VirtualClock()

    def look_later(_: int) -> Look:
        clock.advance_ms(1000)
        return looked(timestamp_ms=clock.now_ms())

    async def run(_argv: Sequence[str], _timeout_ms: float) -> bytes:
        return b""

    network = AsyncioNetwork(asyncio.get_running_loop())
    bootstrap = parse_addresses(given.bootstrap_servers)
    cluster = Cluster(network, bootstrap, ClientSettings("agent"), retry_ms=0)
    files = files or SimulatedDisk(random.Random(1))
    return Agent(given, "b1", AgentContext(clock, files, cluster, look or look_later, run))


async def run_until(agent: Agent, is_done: Callable[[], bool]) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop, lambda: None))
    async with asyncio.timeout(30):
        while not is_done() and not running.done():
            await asyncio.sleep(0.001)
        stop.set()
        await running


def consumed(running: CliCluster, topic: str) -> list[dict[str, object]]:
    lines = running.done("consume", topic, "--from-beginning", "--until-end", "--json")
    return [json.loads(line) for line in lines.splitlines()]


def test_each_sample_is_a_record_with_the_hosts_name_as_key_and_its_own_time(
    running: CliCluster,
) -> None:
    running.done("topics", "create", "ops.host", "--partitions", 3)

    async def run() -> Agent:
        agent = agent_of(settings(running.address))
        await run_until(agent, lambda: agent.metrics.published_records >= 3)
        return agent

    agent = asyncio.run(run())
    found = consumed(running, "ops.host")
    assert len({each["partition"] for each in found}) == 1
    assert {each["key"] for each in found} == {"b1"}
    values = [json.loads(str(each["value"])) for each in found]
    assert [each["sequence"] for each in values] == list(range(1, len(values) + 1))
    assert [each["timestamp"] for each in found] == [each["timestamp_ms"] for each in values]
    assert len(values) == agent.metrics.published_records


def test_queued_records_are_sent_once_the_topic_exists(running: CliCluster) -> None:
    async def run() -> Agent:
        agent = agent_of(settings(running.address, agent_topic="late"))
        await run_until(agent, lambda: agent.metrics.failed_sends >= 2)
        assert len(agent.queue) >= 2
        await asyncio.to_thread(running.done, "topics", "create", "late")
        await run_until(agent, lambda: agent.metrics.published_records >= 3)
        return agent

    agent = asyncio.run(run())
    values = [json.loads(str(each["value"])) for each in consumed(running, "late")]
    assert [each["sequence"] for each in values] == list(range(1, len(values) + 1))
    assert agent.queue.dropped == 0


def test_a_record_that_is_permanently_refused_does_not_hold_up_the_others(
    running: CliCluster,
) -> None:
    running.done("topics", "create", "small", "--config", "max.message.bytes=100")

    async def run() -> Agent:
        agent = agent_of(settings(running.address, agent_topic="small"))
        await run_until(agent, lambda: agent.queue.dropped >= 2)
        return agent

    agent = asyncio.run(run())
    assert agent.metrics.published_records == 0
    assert len(agent.queue) <= 1


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (Error.MESSAGE_TOO_LARGE, lambda values: sum(map(len, values)) > 30),
        (Error.INVALID_TIMESTAMP, lambda values: b"x" * 40 in values),
    ],
)
def test_of_a_batch_that_is_refused_only_the_record_that_is_to_blame_is_dropped(
    monkeypatch: pytest.MonkeyPatch, error: Error, is_refused: Callable[[list[bytes]], bool]
) -> None:
    small, sent = [b"%09d" % number for number in range(20)], list[bytes]()

    async def produce(_: Cluster, batches: Batches) -> None:
        (batch,) = batches.values()
        values = [record.value or b"" for record in read_batch(batch)]
        if is_refused(values):
            raise ApiError(error)
        sent.extend(values)

    async def run() -> Queue:
        queue = Queue(100)
        for value in (*small[:7], b"x" * 40, *small[7:]):
            queue.add(Queued(1, value))
        cluster = Cluster(AsyncioNetwork(asyncio.get_running_loop()), [], ClientSettings("agent"))
        publisher = Publisher(cluster, "ops.host", "b1", queue, AgentMetrics())
        publisher._partition = TopicPartition("ops.host", 0)
        assert not await publisher.send_all()
        publisher._partition = TopicPartition("ops.host", 0)
        assert await publisher.send_all()
        return queue

    monkeypatch.setattr("kdist.agent.publisher.produce", produce)
    assert asyncio.run(run()).dropped == 1
    assert sent == small


def test_without_a_broker_the_oldest_records_are_dropped_and_counted() -> None:
    async def run() -> Agent:
        agent = agent_of(settings(NOBODY, agent_queue_records=2))
        await run_until(agent, lambda: agent.queue.dropped >= 3)
        return agent

    agent = asyncio.run(run())
    waiting = [json.loads(each.value) for each in agent.queue.take(1 << 20)]
    assert [each["sequence"] for each in waiting] == [agent.queue.dropped + n for n in (1, 2)]
    assert agent.metrics.published_records == 0


def test_the_metrics_file_exists_only_while_the_agent_runs() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/run")

    async def run() -> bytes:
        agent = agent_of(settings(NOBODY, agent_metrics_file=METRICS_FILE), disk)
        await agent.look_once()
        content = disk.read(METRICS_FILE)
        await run_until(agent, lambda: True)
        return content

    assert b"kdist_agent_queued_records 1.0" in asyncio.run(run())
    assert not disk.exists(METRICS_FILE)


def test_a_metrics_file_that_cannot_be_written_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        agent = agent_of(settings(NOBODY, agent_metrics_file="/nowhere/x.prom"))
        await agent.look_once()
        await agent.look_once()
        assert len(agent.queue) == 2

    asyncio.run(run())
    assert caplog.text.count("/nowhere/x.prom could not be written") == 1


def test_a_bug_ends_the_agent() -> None:
    def look(_: int) -> Look:
        raise ZeroDivisionError

    async def run() -> None:
        await run_until(agent_of(settings(NOBODY), look=look), lambda: False)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_a_queue_returns_what_fits_and_at_least_one() -> None:
    queue = Queue(10)
    for number in range(4):
        queue.add(Queued(number, b"12345"))
    assert [each.timestamp_ms for each in queue.take(12)] == [0, 1]
    assert [each.timestamp_ms for each in queue.take(1)] == [2]
    assert len(queue) == 1
    assert Queue(1).take(100) == []


def test_records_put_back_into_a_full_queue_are_the_ones_dropped() -> None:
    queue = Queue(2)
    queue.add(Queued(1, b""))
    taken = queue.take(100)
    queue.add(Queued(2, b""))
    queue.add(Queued(3, b""))
    queue.put_back(taken)
    assert [each.timestamp_ms for each in queue.take(100)] == [2, 3]
    assert queue.dropped == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "bootstrap.servers must be given: brokers of the cluster"),
        ("bootstrap.servers=b1\n", "bootstrap.servers has 'b1', but must have host:port"),
        ("bootstrap.servers=b1:9092\nagent.zookeeper=zk\n", "agent.zookeeper has 'zk'"),
        ("bootstrap.servers=b1:9092\nagent.interval.ms=5\n", "from 100 to"),
        ("bootstrap.servers=b1:9092\nagent.rak=r\n", "did you mean agent.rack"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_agent(text, "agent.properties")
    assert len(caught.value.faults) == 1
    assert sentence in caught.value.faults[0]
    assert "agent.properties" in caught.value.faults[0]
