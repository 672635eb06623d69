"""`/metrics` and `/health`, and what malformed requests get."""

from __future__ import annotations

import asyncio
import json

import pytest

from kdist.broker.http import CONNECTIONS_MAX, HEAD_BYTES_MAX
from kdist.zk.client import SessionState
from tests.simulator.cluster import Cluster


class Asker(asyncio.BufferedProtocol):
    """Sends bytes, keeps the answer."""

    def __init__(self) -> None:
        self.text = ""
        self.is_closed = False
        self._space = bytearray(1 << 16)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self.text += self._space[:nbytes].decode()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True


async def connected(cluster: Cluster, host: str = "asker") -> Asker:
    return await cluster.network.host(host).connect(Asker, "m1", 8080)


async def ask(cluster: Cluster, given: bytes) -> tuple[int, str]:
    """The status and the body."""
    asker = await connected(cluster)
    asker.transport.write(given)  # type: ignore[attr-defined]
    await cluster.until(lambda: asker.is_closed)
    head, _, body = asker.text.partition("\r\n\r\n")
    return int(head.split()[1]), body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: m1\r\n\r\n".encode()


def test_health_describes_a_serving_broker() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_metrics_show_the_build_info() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started(http_address=":8080")
        _, body = await ask(cluster, get("/metrics"))
        settings = broker.context.config.digest()
        labels = f'release="",settings="{settings}",unit="",version="unknown"'
        assert f"kdist_build_info{{{labels}}} 1.0" in body

    cluster.run(scenario())


def test_health_is_unavailable_once_the_broker_has_failed() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started(http_address=":8080")
        broker.fail(RuntimeError("a bug"))
        status, body = await ask(cluster, get("/health?verbose"))
        assert (status, json.loads(body)["status"]) == (503, "unavailable")

    cluster.run(scenario())


def test_health_is_unavailable_until_an_expired_session_is_replaced() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


def test_metrics_show_whether_the_session_is_connected() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(http_address=":8080")
        assert "kdist_broker_zookeeper_connected 1.0" in (await ask(cluster, get("/metrics")))[1]
        cluster.ensemble.stop()
        await cluster.until(lambda: cluster.zks[1].state is SessionState.SUSPENDED)
        assert "kdist_broker_zookeeper_connected 0.0" in (await ask(cluster, get("/metrics")))[1]

    cluster.run(scenario())


def test_metrics_show_every_group() -> None:
    cluster = Cluster()

    async def scenario() -> None:
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

    cluster.run(scenario())


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
def test_malformed_requests_get_an_error_status(given: bytes, status: int) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(http_address=":8080")
        assert (await ask(cluster, given))[0] == status

    cluster.run(scenario())


def test_a_request_whose_head_never_ends_is_closed() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(http_address=":8080")
        asker = await connected(cluster)
        asker.transport.write(b"GET /hea")  # type: ignore[attr-defined]
        await cluster.until(lambda: asker.is_closed)
        assert asker.text == ""

    cluster.run(scenario())


@pytest.mark.parametrize("hosts", [1, 5, CONNECTIONS_MAX])
def test_idle_peers_of_any_number_of_addresses_do_not_keep_a_scraper_out(hosts: int) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(http_address=":8080")
        idle = [
            await connected(cluster, f"idle-{number % hosts}") for number in range(CONNECTIONS_MAX)
        ]
        for _ in range(3):
            status, _ = await ask(cluster, get("/metrics"))
            assert status == 200
        assert 1 <= sum(each.is_closed for each in idle) <= 3

    cluster.run(scenario())


def test_peers_that_keep_connecting_close_their_own_connections_only() -> None:
    """Each has begun to ask; so has the scraper, from another address."""
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(http_address=":8080")
        scraper = await connected(cluster, "scraper")
        scraper.transport.write(b"GET /metrics")  # type: ignore[attr-defined]
        hostile = [await connected(cluster, "hostile") for _ in range(CONNECTIONS_MAX * 2)]
        for each in hostile:
            each.transport.write(b"G")  # type: ignore[attr-defined]
        scraper.transport.write(b" HTTP/1.1\r\n\r\n")  # type: ignore[attr-defined]
        await cluster.until(lambda: scraper.is_closed)
        assert scraper.text.startswith("HTTP/1.1 200 ")
        assert sum(not each.is_closed for each in hostile) < CONNECTIONS_MAX

    cluster.run(scenario())


def test_too_many_connections_at_once_are_refused() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(http_address=":8080")
        askers = [await connected(cluster) for _ in range(CONNECTIONS_MAX + 1)]
        await cluster.until(lambda: any(each.is_closed for each in askers))
        assert sum(each.is_closed for each in askers) == 1

    cluster.run(scenario())
