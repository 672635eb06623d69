"""What a scrape shows, `/metrics` and `/health`, and what malformed requests get."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from kdist.broker import measures as module
from kdist.broker.broker import Broker
from kdist.broker.http import CONNECTIONS_MAX, HEAD_BYTES_MAX
from kdist.broker.measures import EVERY_MS, Measures
from kdist.controller.context import ControllerContext
from kdist.errors import UserError
from kdist.groups.coordinator import Caller
from kdist.metrics.groups import GroupLagMetrics
from kdist.model import TopicPartition
from kdist.ops.roll_lock import release_lock, take_lock
from kdist.protocol.delete_groups import DeleteGroupsRequest
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.zk import znodes
from kdist.zk.client import SessionState
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.test_broker_start_groups import commit, coordinating, with_offsets_topic
from tests.unit.network.network_world import RawPeer


async def scraped(*brokers: Broker) -> None:
    """Scrape the brokers, and let them collect."""
    await asyncio.sleep(EVERY_MS / 1000)
    for broker in brokers:
        broker._metrics_page()
        await asyncio.sleep(1)


def lag(*brokers: Broker, group: str = "g") -> tuple[int, float]:
    """Of the group in the topic clicks, wherever it is coordinated."""
    (found,) = (
        shown
        for broker in brokers
        for key, shown in broker.measures.lags.items()
        if key == (group, "clicks")
    )
    return found.lag_records, found.lag_seconds


async def connected(cluster: Cluster, host: str = "asker") -> RawPeer:
    return await cluster.network.host(host).connect(RawPeer, "m1", 8080)


async def ask(cluster: Cluster, given: bytes) -> tuple[int, str]:
    """The status and the body."""
    asker = await connected(cluster)
    asker.transport.write(given)
    await cluster.until(lambda: asker.is_closed)
    head, _, body = asker.received.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


async def with_token(cluster: Cluster, content: bytes | None) -> None:
    """Start a broker whose pages are for those who have the token in that file."""
    cluster.replace_disk(1)
    if content is not None:
        cluster.disks[1].replace("/d/token", content)
    await cluster.started(http_address=":8080", http_token_file="/d/token")


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: m1\r\n\r\n".encode()


async def test_a_scrape_shows_how_far_a_group_is_behind(cluster: Cluster) -> None:
    broker, client = await coordinating(cluster)
    assert await commit(client, "g", 0) == 0
    await scraped(broker)
    assert lag(broker) == (0, 0.0)
    await produce(client, "clicks", b"1", b"2", b"3")
    assert await commit(client, "g", 1) == 0
    await scraped(broker)
    records, seconds = lag(broker)
    assert records == 2
    assert 10 <= seconds <= 13
    page = broker._metrics_page().body.decode()
    assert 'kdist_group_lag_records{group="g",topic="clicks"} 2.0' in page
    assert await commit(client, "g", 3) == 0
    await scraped(broker)
    assert lag(broker) == (0, 0.0)


async def test_partitions_of_other_leaders_are_asked_for(cluster: Cluster) -> None:
    brokers = [await cluster.started(number) for number in (1, 2)]
    clients = [await cluster.client(number) for number in (1, 2)]
    await create(clients[0], "clicks")
    await with_offsets_topic(cluster, brokers[0])
    clicks = TopicPartition("clicks", 0)
    await cluster.until(lambda: all(each.service.cache.has(clicks) for each in brokers))
    leader = brokers[0].service.cache.leader_of(clicks)
    await produce(clients[leader - 1], "clicks", b"1", b"2")
    for coordinator in (1, 2):
        names, there = map(str, range(20)), clients[coordinator - 1]
        group, *_ = [name for name in names if await commit(there, name, 0) == 0]
        await scraped(*brokers)
        assert lag(brokers[coordinator - 1], group=group)[0] == 2


async def test_a_leader_that_is_gone_costs_no_lag_that_is_known_otherwise(cluster: Cluster) -> None:
    broker, client = await coordinating(cluster)
    await produce(client, "clicks", b"1")
    assert await commit(client, "g", 0) == 0
    await scraped(broker)
    broker.service.cache.topics["clicks"].partitions[0].leader = 7
    del broker.service.replicas.partitions[TopicPartition("clicks", 0)]
    await scraped(broker)
    assert lag(broker)[0] == 1
    assert not broker.failure.done()


async def test_nothing_is_asked_more_often_than_every_ten_seconds(cluster: Cluster) -> None:
    broker, client = await coordinating(cluster)
    assert await commit(client, "g", 0) == 0
    await scraped(broker)
    await produce(client, "clicks", b"1")
    broker._metrics_page()
    await asyncio.sleep(1)
    assert lag(broker)[0] == 0
    await scraped(broker)
    assert lag(broker)[0] == 1


async def test_a_group_that_is_gone_is_shown_no_more(cluster: Cluster) -> None:
    broker, client = await coordinating(cluster)
    assert await commit(client, "g", 0) == 0
    await scraped(broker)
    assert broker.measures.lags
    coordinator = broker.service.coordinator
    request = DeleteGroupsRequest(groups_names=["g"])
    coordinator.delete_groups(request, Caller(2, "admin", "/here"), lambda _: None)
    await scraped(broker)
    assert not broker.measures.lags


async def test_more_groups_than_are_shown_are_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, client = await coordinating(cluster)
    await produce(client, "clicks", b"1", b"2", b"3")
    for offset in range(3):
        assert await commit(client, f"g{offset}", offset) == 0
    monkeypatch.setattr(module, "SHOWN_MAX", 2)
    await scraped(broker)
    assert set(broker.measures.lags) == {("g0", "clicks"), ("g1", "clicks")}
    assert broker.measures.groups.hidden_lags == 1


def test_the_limit_is_the_one_that_the_metric_tells() -> None:
    assert f"At most {module.SHOWN_MAX} groups" in (GroupLagMetrics.__doc__ or "")


async def test_the_controller_shows_how_long_the_rolls_lock_has_been_held(cluster: Cluster) -> None:
    broker, other = await cluster.started(1), await cluster.started(2)
    metrics, zk, clock = broker.measures.controller, cluster.zks[1], cluster.clock
    assert broker.service.controller.is_active
    await scraped(broker, other)
    assert (metrics.roll_lock_seconds(), metrics.roll_lock_overdue_seconds()) == (0, 0)
    assert str(other.measures.controller.roll_lock_seconds()) == "nan"
    await take_lock(zk, "ann", "run-1", 30_000, clock)
    await scraped(broker)
    assert 10 <= metrics.roll_lock_seconds() <= 12
    assert metrics.roll_lock_overdue_seconds() == 0
    await asyncio.sleep(60)
    assert 70 <= metrics.roll_lock_seconds() <= 72
    assert 40 <= metrics.roll_lock_overdue_seconds() <= 42
    await release_lock(zk, "run-1")
    await scraped(broker)
    assert metrics.roll_lock_seconds() == 0


async def test_a_lock_that_cannot_be_read_is_not_known_and_harms_nobody(cluster: Cluster) -> None:
    broker = await cluster.started()
    path = znodes.LOCK.path(znodes.ROLL_LOCK)
    await cluster.zks[1].create(path, b"{", make_parents=True)
    await scraped(broker)
    assert str(broker.measures.controller.roll_lock_seconds()) == "nan"
    assert not broker.failure.done()


async def test_a_scrape_shows_for_how_long_topics_keep_records_unless_it_is_for_good(
    cluster: Cluster,
) -> None:
    brokers = [await cluster.started(number) for number in (1, 2)]
    client = await cluster.client()
    kept_s = {"clicks": 60.0, "views": 604_800.0}
    await create(client, "clicks", partitions=3, retention_ms="60000")
    await create(client, "views")
    await create(client, "endless", retention_ms="-1")
    await create(client, "compacted", cleanup_policy="compact")
    topics = (*kept_s, "endless", "compacted")
    await cluster.until(
        lambda: all(
            any(
                (found := broker.service.replicas.partitions.get(TopicPartition(topic, 0)))
                and found.is_leader
                for broker in brokers
            )
            for topic in topics
        )
    )
    await scraped(*brokers)
    shown = [
        (topic, each.retention_seconds)
        for broker in brokers
        for (topic,), each in broker.measures.retention.items()
    ]
    assert sorted(shown) == sorted(kept_s.items())


async def test_a_scrape_of_the_controller_goes_through_no_partition(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walked(_cluster: ControllerContext) -> object:
        raise AssertionError

    broker = await cluster.started()
    await create(await cluster.client(), "clicks", 3)
    monkeypatch.setattr(ControllerContext, "partitions", walked)
    monkeypatch.setattr(ControllerContext, "living_topics", walked)
    shown = broker.measures.exposition.render().decode()
    assert "kdist_controller_partitions 3.0" in shown
    assert "kdist_controller_offline_partitions 0.0" in shown


# --- the loop -------------------------------------------------------------------------------------


class Turns:
    """The longest turn in each half second, as they are set."""

    def __init__(self) -> None:
        self.next_s = 0.0

    def take_longest_s(self) -> float:
        taken, self.next_s = self.next_s, 0.0
        return taken


def test_each_of_several_scrapers_sees_the_longest_turn_for_two_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, loop = Turns(), VirtualLoop(VirtualClock())
    monkeypatch.setattr(module, "turn_of", lambda _loop: turns)
    measures = Measures()

    def shown() -> float:
        return measures.broker.loop_longest_turn_seconds()

    async def scenario() -> None:
        watching = asyncio.ensure_future(measures.watch_lag())
        await asyncio.sleep(1)
        assert shown() == 0
        turns.next_s = 3.5
        await asyncio.sleep(1)
        assert [shown(), shown()] == [3.5, 3.5]
        turns.next_s = 0.5
        await asyncio.sleep(110)
        assert [shown(), shown()] == [3.5, 3.5]
        turns.next_s = 0.25
        await asyncio.sleep(15)
        assert shown() == 0.25
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    loop.run_until_complete(scenario())
    loop.close()


async def test_health_describes_a_serving_broker(cluster: Cluster) -> None:
    broker = await cluster.started(http_address=":8080")
    status, body = await ask(cluster, get("/health"))
    assert status == 200
    assert json.loads(body) == {
        "status": "ok",
        "broker": 1,
        "version": "unknown",
        "release": "",
        "settings": broker.context.config.digest(),
        "unit": "",
        "state": "ready",
        "zookeeper": "connected",
        "controller": True,
        "partitions": 0,
    }


async def test_metrics_show_the_build_info(cluster: Cluster) -> None:
    broker = await cluster.started(http_address=":8080")
    _, body = await ask(cluster, get("/metrics"))
    settings = broker.context.config.digest()
    labels = f'release="",settings="{settings}",unit="",version="unknown"'
    assert f"kdist_build_info{{{labels}}} 1.0" in body


async def test_health_is_unavailable_once_the_broker_has_failed(cluster: Cluster) -> None:
    broker = await cluster.started(http_address=":8080")
    broker.fail(RuntimeError("a bug"))
    status, body = await ask(cluster, get("/health?verbose"))
    assert (status, json.loads(body)["status"]) == (503, "unavailable")


async def test_health_is_unavailable_until_an_expired_session_is_replaced(cluster: Cluster) -> None:
    broker = await cluster.started(http_address=":8080")
    seen = []

    def look(state: SessionState) -> None:
        page = broker._health_page()
        seen.append((state.value, page.status, json.loads(page.body)["status"]))

    cluster.zks[1].add_listener(look)
    cluster.ensemble.expire(cluster.zks[1])
    await cluster.until(lambda: seen and seen[-1][0] == "connected")
    assert ("expired", 503, "unavailable") in seen
    assert seen[-1] == ("connected", 200, "ok")


async def test_metrics_show_whether_the_session_is_connected(cluster: Cluster) -> None:
    await cluster.started(http_address=":8080")
    assert "kdist_broker_zookeeper_connected 1.0" in (await ask(cluster, get("/metrics")))[1]
    cluster.ensemble.stop()
    await cluster.until(lambda: cluster.zks[1].state is SessionState.SUSPENDED)
    assert "kdist_broker_zookeeper_connected 0.0" in (await ask(cluster, get("/metrics")))[1]


async def test_metrics_show_every_group(cluster: Cluster) -> None:
    await cluster.started(http_address=":8080")
    status, body = await ask(cluster, get("/metrics"))
    assert status == 200
    for name in (
        "kdist_broker_ready 1.0",
        'kdist_requests_total{api="UpdateMetadata"}',
        "kdist_network_open_connections",
        "kdist_partitions_led 0.0",
        "kdist_group_coordinated_groups 0.0",
        "kdist_controller",
        "kdist_log_appended_records_total",
        "kdist_log_open_partitions 0.0",
    ):
        assert name in body, name
    assert "kdist_disk_free_bytes NaN" not in body


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (get("/nothing"), 404),
        (b"POST /health HTTP/1.1\r\n\r\n", 405),
        (b"HELLO\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n" + b"X: " + b"x" * HEAD_BYTES_MAX, 431),
        (b"HEAD /health HTTP/1.0\r\n\r\n", 200),
    ],
)
async def test_malformed_requests_get_an_error_status(
    cluster: Cluster, given: bytes, status: int
) -> None:
    await cluster.started(http_address=":8080")
    assert (await ask(cluster, given))[0] == status


@pytest.mark.parametrize(
    ("field", "status"),
    [
        (b"", 401),
        (b"Authorization: Bearer hunter2", 200),
        (b"Host: m1\r\nAUTHORIZATION:bearer  hunter2 ", 200),
        (b"Authorization: Bearer hunter", 401),
        (b"Authorization: Bearer hunter22", 401),
        (b"Authorization: Bearer", 401),
        (b"Authorization: Basic hunter2", 401),
        (b"X-Authorization: Bearer hunter2", 401),
        (b"Authorization: Bearer \xff\x00", 401),
        (b"Authorization: Bearer x\r\nAuthorization: Bearer hunter2", 401),
    ],
)
async def test_pages_with_a_token_are_for_those_who_have_it(
    cluster: Cluster, field: bytes, status: int
) -> None:
    await with_token(cluster, b"hunter2\n")
    for path in (b"/metrics", b"/health", b"/nothing"):
        head = b"GET %b HTTP/1.1\r\n%b\r\n\r\n" % (path, field)
        given, body = await ask(cluster, head)
        assert given == (404 if (status, path) == (200, b"/nothing") else status)
        assert "kdist" not in body or status == 200


@pytest.mark.parametrize("content", [None, b"", b" \n"])
async def test_a_broker_without_the_token_that_it_shall_have_does_not_start(
    cluster: Cluster, content: bytes | None
) -> None:
    with pytest.raises(UserError, match=r"http\.token\.file /d/token"):
        await with_token(cluster, content)


async def test_a_request_whose_head_never_ends_is_closed(cluster: Cluster) -> None:
    await cluster.started(http_address=":8080")
    asker = await connected(cluster)
    asker.transport.write(b"GET /hea")
    await cluster.until(lambda: asker.is_closed)
    assert asker.received == b""


@pytest.mark.parametrize("hosts", [1, 5, CONNECTIONS_MAX])
async def test_idle_peers_of_any_number_of_addresses_do_not_keep_a_scraper_out(
    cluster: Cluster, hosts: int
) -> None:
    await cluster.started(http_address=":8080")
    idle = [await connected(cluster, f"idle-{number % hosts}") for number in range(CONNECTIONS_MAX)]
    for _ in range(3):
        status, _ = await ask(cluster, get("/metrics"))
        assert status == 200
    assert 1 <= sum(each.is_closed for each in idle) <= 3


async def test_peers_that_keep_connecting_close_their_own_connections_only(
    cluster: Cluster,
) -> None:
    """Each has begun to ask; so has the scraper, from another address."""
    await cluster.started(http_address=":8080")
    scraper = await connected(cluster, "scraper")
    scraper.transport.write(b"GET /metrics")  # type: ignore[attr-defined]
    hostile = [await connected(cluster, "hostile") for _ in range(CONNECTIONS_MAX * 2)]
    for each in hostile:
        each.transport.write(b"G")  # type: ignore[attr-defined]
    scraper.transport.write(b" HTTP/1.1\r\n\r\n")  # type: ignore[attr-defined]
    await cluster.until(lambda: scraper.is_closed)
    assert scraper.received.startswith(b"HTTP/1.1 200 ")
    assert sum(not each.is_closed for each in hostile) < CONNECTIONS_MAX


async def test_too_many_connections_at_once_are_refused(cluster: Cluster) -> None:
    await cluster.started(http_address=":8080")
    askers = [await connected(cluster) for _ in range(CONNECTIONS_MAX + 1)]
    await cluster.until(lambda: any(each.is_closed for each in askers))
    assert sum(each.is_closed for each in askers) == 1
