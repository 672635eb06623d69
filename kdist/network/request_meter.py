"""Counts one connection's requests for its client's metrics: how many, how long, how it ended."""

from __future__ import annotations

from collections.abc import Callable

from kdist.metrics.clients import ClientRequestMetrics, ConnectionFamilies


class RequestMeter:
    """Owner: the loop. `broker` has the counts of all connections to its broker."""

    __slots__ = ("_by_api", "_families", "_name", "_now_s", "broker")

    def __init__(
        self, families: ConnectionFamilies, broker: str, now_s: Callable[[], float]
    ) -> None:
        self.broker = families.brokers[broker,]
        self._name = broker
        self._families = families
        self._by_api: dict[str, ClientRequestMetrics] = {}  # of those of this broker
        self._now_s = now_s

    def answered(self, api: str, asked_s: float) -> None:
        self.broker.requests_in_flight -= 1
        requests = self._by_api.get(api) or self._requests(api)
        requests.seconds.observe(self._now_s() - asked_s)

    def failed(self, api: str) -> None:
        self.broker.requests_in_flight -= 1
        self._requests(api).failed += 1

    def _requests(self, api: str) -> ClientRequestMetrics:
        found = self._by_api[api] = self._families.requests[self._name, api]
        return found
