"""Client quotas: what a request costs a client that has some, and how long it then has to pause.

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

import logging
import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from kdist.broker.stored_quotas import (
    FETCH,
    PRODUCE,
    REQUEST,
    Limits,
    QuotaRow,
    client_of,
    in_force,
    limits_of,
    read_all,
    read_one,
)
from kdist.metrics.broker import QuotaMetrics
from kdist.metrics.declare import Family
from kdist.protocol import fetch, list_offsets, offset_for_leader_epoch, produce
from kdist.protocol.frame import RequestHeader
from kdist.protocol.versions import api_for
from kdist.runtime.clock import Clock
from kdist.security.acls import CLUSTER_NAME, Operation, ResourceType
from kdist.security.subjects import Subject
from kdist.zk.client import ZooKeeper
from kdist.zk.znodes import DEFAULT_ENTITY

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLIENTS_MAX = 10_000
NAMED_MAX = 200
OTHERS = "<others>"  # in metrics, clients with quotas of their own beyond that number
PAUSE_S_MIN = 0.001  # the wire has milliseconds; what is less stays owed
_CROWD = 1000  # with so many accounts, what can be forgotten is looked for each second
_LOOK_EVERY_S = 60.0
_NS_PER_S = 1_000_000_000
_SENTENCE_EVERY_S = 30.0
_LONGEST_NAME = 100  # of a client id in a log line
_DEBT_S_MAX = 3600.0  # what a client owes beyond this is forgiven
_FOLLOWER_ID: dict[int, Callable[[Any], int]] = {
    fetch.API.key: attrgetter("follower_id"),
    list_offsets.API.key: attrgetter("replica_id"),
    offset_for_leader_epoch.API.key: attrgetter("replica_id"),
}
_FIRST_FETCH_OF_WHOLE_BATCHES = 3  # older clients get stuck if less than a message is answered


class Budget:
    """At most so much a second, and a second's worth at once (pure).

        in any t seconds a client gets   rate * (t + burst_s)   and what it had on the way then

    It is one number, the time at which all that was used is paid for: what is used moves it by
    amount / rate. If it is in the future, the client has to pause until then. If it is in the past,
    the client has credit, but never for more than `burst_s` seconds. So a budget with full credit
    is like a new one, and may be forgotten.

    Kafka averages over `quota.window.num` windows instead: there a client may use ten seconds'
    worth at once, is then told to pause for about as long, and may burst again when that window is
    forgotten. At ten times its quota it gets 3% to 10% above it here in 30 seconds, and 10% to 33%
    there.

    Owner: `Quotas`. Times are seconds of one monotonic clock.
    """

    __slots__ = ("_burst_s", "_paid_s", "_rate")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        assert rate > 0, "a quota is above 0"
        self._rate = rate
        self._burst_s = burst_s
        self._paid_s = now_s - burst_s

    @property
    def at_once(self) -> float:
        """The most that full credit is worth."""
        return self._rate * self._burst_s

    def use(self, amount: float, now_s: float) -> float:
        """Use that much; returns for how many seconds the client has to pause now."""
        paid_s = max(self._paid_s, now_s - self._burst_s) + amount / self._rate
        self._paid_s = min(paid_s, now_s + _DEBT_S_MAX)
        return self.debt_s(now_s)

    def debt_s(self, now_s: float) -> float:
        """For how many seconds the client has to pause; 0 if it has credit."""
        return max(0.0, self._paid_s - now_s)

    def is_full(self, now_s: float) -> bool:
        """Whether it has all the credit there can be."""
        return self._paid_s <= now_s - self._burst_s

    def change_rate(self, rate: float, now_s: float) -> None:
        """Go on at another rate; what is owed stays owed."""
        debt_s = self.debt_s(now_s)
        if debt_s:
            self._paid_s = min(now_s + debt_s * self._rate / rate, now_s + _DEBT_S_MAX)
        self._rate = rate


class Meter(NamedTuple):
    """One quota of a client: what is left of it, and where its use is counted."""

    row: QuotaRow
    budget: Budget
    metrics: QuotaMetrics


class Account:
    """A client's quotas. Owner: `Quotas`.

    What is used is charged by a method that returns for how many seconds the client has to pause,
    0 if it need not or has no such quota.
    """

    __slots__ = ("_client_id", "_quotas", "meters")

    def __init__(self, quotas: Quotas, client_id: str) -> None:
        self._quotas = quotas
        self._client_id = client_id
        self.meters: Mapping[QuotaRow, Meter] = {}

    def produced(self, size: int) -> float:
        """Charge the bytes of a request with records."""
        return self._use(PRODUCE, size)

    def fetched(self, size: int) -> float:
        """Charge the bytes of an answer with records."""
        return self._use(FETCH, size)

    def kept_busy(self, seconds: float) -> float:
        """Charge the loop's time. The pause is never longer than the burst, as in Kafka.

        What is owed beyond that is still owed when the client comes back.
        """
        return self._use(REQUEST, seconds, self._quotas.burst_s)

    def owed_for_fetches(self) -> float:
        """Charge nothing: the pause before the client may fetch again."""
        return self._use(FETCH, 0)

    @property
    def fetch_bytes_max(self) -> int | None:
        """The most bytes of records that one answer should have; None if there is no limit."""
        meter = self.meters.get(FETCH)
        return None if meter is None else max(1, int(meter.budget.at_once))

    def is_new(self, now_s: float) -> bool:
        """Whether one made now would be the same."""
        return all(meter.budget.is_full(now_s) for meter in self.meters.values())

    def _use(self, row: QuotaRow, amount: float, pause_s_max: float = math.inf) -> float:
        meter = self.meters.get(row)
        if meter is None:
            return 0.0
        _, budget, metrics = meter
        metrics.used += amount
        pause_s = min(budget.use(amount, self._quotas.now_s()), pause_s_max)
        if pause_s < PAUSE_S_MIN:
            return 0.0
        metrics.throttled += 1
        metrics.throttled_seconds += pause_s
        self._quotas.say(row, self._client_id, pause_s)
        return pause_s


class Quotas:
    """The clients that have a quota, and what is left of it. Owner: the broker.

    A client is whoever sends its client id; without users, nothing proves it. Each has one budget
    for each of its quotas, over all its connections to this broker. The budgets are made when a
    client is heard, and forgotten once they have full credit again, which changes nothing. Peers
    can make up client ids, so at most `CLIENTS_MAX` clients that have only the default quota get a
    budget of their own: any further ones share one.

    Metrics name a client only if it has a quota of its own, which an operator gave it, and then
    only the first `NAMED_MAX` by their ids: any further ones are counted together, as all others
    are.
    """

    def __init__(
        self,
        clock: Clock,
        burst_s: float,
        metrics: Family[QuotaMetrics],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after every change of what is in force."""
        self._clock = clock
        self.burst_s = burst_s
        self._metrics = metrics
        self._changed = changed
        self.limits: Mapping[str, Limits] = {}  # that are set: by client id, and the default's
        self._labels: dict[str, str] = {}  # of those in metrics
        self._accounts: dict[str, Account] = {}
        self._shared = Account(self, DEFAULT_ENTITY)  # of clients for which there is no room
        self._next_look_s = 0.0
        self._next_sentence_s = -_SENTENCE_EVERY_S

    def __len__(self) -> int:
        """How many accounts there are."""
        return len(self._accounts)

    def now_s(self) -> float:
        return self._clock.monotonic_ns() / _NS_PER_S

    # Who has which

    def replace(self, limits: Mapping[str, Limits]) -> None:
        """Replace everything: the quotas of each client, and of `DEFAULT_ENTITY`."""
        given = {name: each for name, each in limits.items() if each}
        if given == self.limits:
            return
        self.limits = given
        self._labels = _labels(given)
        self._show()
        kept: dict[str, Account] = {}
        for client_id, account in (*self._accounts.items(), (DEFAULT_ENTITY, self._shared)):
            account.meters = self._meters(client_id, account.meters)
            if account.meters and account is not self._shared:
                kept[client_id] = account
        self._accounts = kept
        self._changed()

    def set(self, client_id: str, limits: Limits) -> None:
        """Replace one client's, or the default's."""
        self.replace({**self.limits, client_id: limits})

    def _meters(self, client_id: str, before: Mapping[QuotaRow, Meter]) -> dict[QuotaRow, Meter]:
        """The client's meters; what it owes by those that it had stays owed."""
        now_s, made = self.now_s(), {}
        own = {} if client_id == DEFAULT_ENTITY else self.limits.get(client_id, {})
        for row, value, is_own in in_force(own, self.limits.get(DEFAULT_ENTITY, {})):
            rate = value / row.per
            if row in before:
                budget = before[row].budget
                budget.change_rate(rate, now_s)
            else:
                budget = Budget(rate, self.burst_s, now_s)
            label = self._labels[client_id] if is_own else DEFAULT_ENTITY
            made[row] = Meter(row, budget, self._metrics[label, row.noun])
        return made

    def _show(self) -> None:
        """Have metrics of the quotas that are set, and of no others."""
        limits = {
            (label, row.noun): 0.0 if label == OTHERS else value / row.per
            for client_id, label in self._labels.items()
            for row, value, _ in in_force(self.limits[client_id], {})
        }
        for labels in self._metrics.keys() - limits.keys():
            del self._metrics[labels]
        for labels, limit in limits.items():
            self._metrics[labels].limit = limit

    # Who is asking

    def account(self, client_id: str | None) -> Account | None:
        """The client's account; None if it has no quota. Ask again after a while."""
        name = client_id or ""
        return self._accounts.get(name) or self._open(name)

    def _open(self, client_id: str) -> Account | None:
        is_known = client_id in self.limits and client_id != DEFAULT_ENTITY
        if not (is_known or DEFAULT_ENTITY in self.limits):
            return None
        self._maybe_forget()
        if len(self._accounts) >= CLIENTS_MAX and not is_known:
            return self._shared
        account = self._accounts[client_id] = Account(self, client_id)
        account.meters = self._meters(client_id, {})
        return account

    def _maybe_forget(self) -> None:
        """Forget the accounts that are like new ones; those of clients that are idle are."""
        now_s = self.now_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + (1.0 if len(self._accounts) >= _CROWD else _LOOK_EVERY_S)
            self._accounts = {
                client_id: account
                for client_id, account in self._accounts.items()
                if not account.is_new(now_s)
            }

    def say(self, row: QuotaRow, client_id: str, pause_s: float) -> None:
        """Name a client that is throttled in the log, now and then one."""
        now_s = self.now_s()
        if now_s >= self._next_sentence_s:
            self._next_sentence_s = now_s + _SENTENCE_EVERY_S
            name = client_id[:_LONGEST_NAME]
            logger.info("client %r is over its %s: it pauses for %.3f s", name, row.name, pause_s)


def _labels(given: Mapping[str, Limits]) -> dict[str, str]:
    """What metrics call each of them (pure)."""
    # A client whose id is what the others are called is one of them.
    named = {*sorted(given.keys() - {DEFAULT_ENTITY, OTHERS})[:NAMED_MAX], DEFAULT_ENTITY}
    return {client_id: client_id if client_id in named else OTHERS for client_id in given}


class StoredQuotas:
    """Has `quotas` follow what is stored. Owner: the broker.

    They are read at start, and as they change. While ZooKeeper is lost, those that were read last
    stay in force.
    """

    def __init__(self, zk: ZooKeeper, quotas: Quotas) -> None:
        self._zk = zk
        self.quotas = quotas

    async def load_all(self) -> None:
        """Read all quotas that there are."""
        stored = await read_all(self._zk)
        self.quotas.replace({name: limits_of(name, each) for name, each in stored.items()})

    reload_all = load_all

    async def reload(self, *nodes: str) -> None:
        """Re-read the quotas of clients, by the names of their znodes."""
        for node in nodes:
            client_id = client_of(node)
            if client_id is not None:
                await self.reload_client(client_id)

    async def reload_client(self, client_id: str) -> None:
        """Re-read the quotas of a client, or of `DEFAULT_ENTITY`."""
        stored = await read_one(self._zk, client_id)
        self.quotas.set(client_id, limits_of(client_id, stored))


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

    def charge(self, size: int, now_ns: int) -> float:
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
        self.quotas = quotas
        self._is_broker = is_broker

    def begin(
        self, header: RequestHeader, request: Any, size: int, subject: Subject
    ) -> Throttle | None:
        """Charge a request of that many bytes; None if it costs its client nothing."""
        account = self.quotas.account(header.client_id)
        if account is None or self._is_free(header.api_key, request, subject):
            return None
        throttle = Throttle(self.quotas, header.client_id, header.api_key)
        throttle.begin(header.api_version, request, size, account)
        return throttle

    def _is_free(self, key: int, request: Any, subject: Subject) -> bool:
        """Whether only brokers send it: they must not wait for each other."""
        if api_for(key).is_between_brokers:
            return True
        follower_id = _FOLLOWER_ID.get(key)
        return (
            follower_id is not None
            and self._is_broker(follower_id(request))
            and subject.could(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        )
