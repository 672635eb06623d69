"""What one request costs a client that has quotas, and for how long it then has to pause.

    produce   its bytes are charged when it comes; if that is too much, its connection takes no
              further request from then on
    fetch     its answer is charged; one that comes while the client owes is answered empty, at once
    request   the time is charged that its decoding, its handler and the encoding of its answer
              kept the broker's one thread, when it is answered; waits cost nothing

The answer is never delayed: it says how long the pause is, and the connection is held for as long
(KIP-219), whichever version the client speaks. Requests that only brokers send cost nothing, nor do
those of followers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from kdist.broker.quotas.quotas import Account, Quotas
from kdist.protocol import fetch, list_offsets, offset_for_leader_epoch, produce
from kdist.protocol.headers import RequestHeader
from kdist.protocol.versions import api_for

T = TypeVar("T")

_NS_PER_S = 1_000_000_000
_FOLLOWER_ID: dict[int, Callable[[Any], int]] = {
    fetch.API.key: attrgetter("follower_id"),
    list_offsets.API.key: attrgetter("replica_id"),
    offset_for_leader_epoch.API.key: attrgetter("replica_id"),
}
_FIRST_FETCH_OF_WHOLE_BATCHES = 3  # older clients get stuck if less than a message is answered


class Throttle:
    """Owner: the request's `Call`. `pause_s` is the longest of the pauses it has led to."""

    __slots__ = ("_busy_ns", "_client_id", "_key", "_quotas", "is_held", "pause_s", "timed_ns")

    def __init__(self, quotas: Quotas, client_id: str | None, key: int) -> None:
        self._quotas = quotas
        self._client_id = client_id
        self._key = key
        self._busy_ns = 0
        self.timed_ns = 0  # since when its handler is running; 0 if it is not
        self.is_held = False  # whether it is a fetch that gets nothing
        self.pause_s = 0.0

    def begin(self, version: int, request: Any, size: int, account: Account) -> None:
        """Charge what is known of a request of that many bytes, and limit what it asks for."""
        if self._key == produce.API.key:
            self.pause_s = account.produced(size)
        elif self._key == fetch.API.key:
            self.pause_s = account.owed_for_fetches()
            self.is_held = self.pause_s > 0
            most = account.fetch_bytes_max
            if most is not None and version >= _FIRST_FETCH_OF_WHOLE_BATCHES:
                request.max_bytes = min(request.max_bytes, most)

    def settle(self, size: int, now_ns: int) -> float:
        """Charge the answer's bytes, and the time that the request has taken.

        Returns for how many seconds the client has to pause because of these.
        """
        self.end_step(now_ns)
        account = self._quotas.account(self._client_id)
        if account is None:
            return 0.0
        is_fetched = self._key == fetch.API.key and not self.is_held
        fetched_s = account.fetched(size) if is_fetched else 0.0
        busy_s = account.kept_busy(self._busy_ns / _NS_PER_S)
        pause_s = max(fetched_s, busy_s)
        self.pause_s = max(self.pause_s, pause_s)
        return pause_s

    def end_step(self, now_ns: int) -> None:
        """The handler has returned, or waits."""
        if self.timed_ns:
            self._busy_ns += now_ns - self.timed_ns
            self.timed_ns = 0


class Timed(Generic[T]):
    """Awaits `work`, and times each of its steps for `throttle`. It is its own iterator."""

    def __init__(self, work: Awaitable[T], throttle: Throttle, now_ns: Callable[[], int]) -> None:
        self._steps: Any = work.__await__()
        self._throttle = throttle
        self._now_ns = now_ns

    def __await__(self) -> Generator[Any, Any, T]:
        return cast(Generator[Any, Any, T], self)

    def __iter__(self) -> Timed[T]:
        return self

    def __next__(self) -> Any:
        return self._time(next, self._steps)

    def send(self, value: Any) -> Any:
        """As of a generator."""
        return self._time(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        """As of a generator."""
        return self._time(self._steps.throw, *error)

    def close(self) -> None:
        """As of a generator."""
        self._steps.close()

    def _time(self, step: Callable[..., Any], *arguments: Any) -> Any:
        self._throttle.timed_ns = self._now_ns()
        try:
            return step(*arguments)
        finally:
            self._throttle.end_step(self._now_ns())


class Throttles:
    """Charges the requests that come. Owner: the broker's `Service`."""

    def __init__(self, quotas: Quotas, is_broker: Callable[[int], bool]) -> None:
        """`is_broker`: whether a follower of this id is one, so that its requests cost nothing."""
        self._quotas = quotas
        self._is_broker = is_broker

    def begin(self, header: RequestHeader, request: Any, size: int) -> Throttle | None:
        """Charge a request of that many bytes; None if it costs its client nothing."""
        account = self._quotas.account(header.client_id)
        if account is None or self._is_free(header.api_key, request):
            return None
        throttle = Throttle(self._quotas, header.client_id, header.api_key)
        throttle.begin(header.api_version, request, size, account)
        return throttle

    def _is_free(self, key: int, request: Any) -> bool:
        """Whether only brokers send it: they must not wait for each other."""
        if api_for(key).is_between_brokers:
            return True
        follower_id = _FOLLOWER_ID.get(key)
        return follower_id is not None and self._is_broker(follower_id(request))
