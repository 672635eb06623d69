"""Quotas of users and clients: what a request costs whoever sent it, and how long it has to pause.

    produce   its bytes are charged when it comes; if that is too much, its connection takes no
              further request from then on
    fetch     its answer is charged; one that comes while the client owes is answered empty, at once
    request   the time is charged that its decoding, its handler and the encoding of its answer
              kept the broker's one thread, when it is answered; waits cost nothing
    mutation  partitions are charged when the controller creates or deletes them; while the client
              owes, newer requests for more are refused (KIP-599)

The answer is never delayed: it says how long the pause is, and the connection is held for as long
(KIP-219), whichever version the client speaks. Requests that only brokers send cost nothing, nor do
those of followers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from kdist.broker.stored_quotas import (
    FETCH,
    MUTATION,
    PRODUCE,
    REQUEST,
    ROWS,
    Entity,
    Limits,
    QuotaRow,
    entity_of,
    in_force,
    limits_of,
    read,
    read_all,
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
OTHERS = "<others>"  # in metrics, those with quotas of their own beyond that number
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

    __slots__ = ("_burst_s", "_forgiven_s", "_paid_s", "_rate")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        assert rate > 0, "a quota is above 0"
        self._rate = rate
        self._burst_s = burst_s
        self._paid_s = now_s - burst_s
        self._forgiven_s = 0.0  # since it last had credit

    @property
    def at_once(self) -> float:
        """The most that full credit is worth."""
        return self._rate * self._burst_s

    def use(self, amount: float, now_s: float) -> float:
        """Use that much; returns for how many seconds the client has to pause now.

        Below 0, it is given back: first what was forgiven, which is not owed.
        """
        if self._paid_s <= now_s:
            self._forgiven_s = 0.0
        used_s = amount / self._rate
        if used_s < 0:
            used_s, self._forgiven_s = (
                min(0.0, used_s + self._forgiven_s),
                max(0.0, used_s + self._forgiven_s),
            )
        self._owe(max(self._paid_s, now_s - self._burst_s) + used_s, now_s)
        return self.debt_s(now_s)

    def _owe(self, paid_s: float, now_s: float) -> None:
        self._paid_s = min(paid_s, now_s + _DEBT_S_MAX)
        self._forgiven_s += paid_s - self._paid_s

    def debt_s(self, now_s: float) -> float:
        """For how many seconds the client has to pause; 0 if it has credit."""
        return max(0.0, self._paid_s - now_s)

    def is_full(self, now_s: float) -> bool:
        """Whether it has all the credit there can be."""
        return self._paid_s <= now_s - self._burst_s

    def change_rate(self, rate: float, now_s: float) -> None:
        """Go on at another rate; what is owed stays owed."""
        self._forgiven_s *= self._rate / rate
        debt_s = self.debt_s(now_s)
        if debt_s:
            self._owe(now_s + debt_s * self._rate / rate, now_s)
        self._rate = rate


class Meter(NamedTuple):
    """One quota of a client: whose it is, what is left of it, and where its use is counted."""

    row: QuotaRow
    payer: Entity
    budget: Budget
    metrics: QuotaMetrics


class Account:
    """The quotas of a user's clients with one client id. Owner: `Quotas`.

    What is used is charged by a method that returns for how many seconds the client has to pause,
    0 if it need not or has no such quota.
    """

    __slots__ = ("_quotas", "meters")

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
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

    def mutated(self, partitions: int) -> float:
        """Charge partitions that the controller is to create or delete; below 0, give back."""
        return self._use(MUTATION, partitions)

    @property
    def owes_for_mutations(self) -> bool:
        meter = self.meters.get(MUTATION)
        return meter is not None and meter.budget.debt_s(self._quotas.now_s()) >= PAUSE_S_MIN

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
        _, payer, budget, metrics = meter
        metrics.used += max(0, amount)
        pause_s = min(budget.use(amount, self._quotas.now_s()), pause_s_max)
        if pause_s < PAUSE_S_MIN:
            return 0.0
        metrics.throttled += 1
        metrics.throttled_seconds += pause_s
        self._quotas.say(row, payer, pause_s)
        return pause_s


class Quotas:
    """Who has a quota, and what is left of it. Owner: the broker.

    A user is whom the connection has proven to be, a client whoever sends its client id. Each quota
    is one budget over all connections to this broker: a user's for all of its client ids, and one
    that names or means client ids for each of them. Budgets are made when a client is heard, and
    forgotten once they have full credit again, which changes nothing. Peers can make up client ids,
    so at most `CLIENTS_MAX` that nobody has named get budgets of their own: those of any further
    ones are shared, by the clients of one user.

    Metrics name only those to whom an operator gave a quota, and then only the first `NAMED_MAX`:
    any further ones are counted together, as all others are.
    """

    def __init__(
        self,
        clock: Clock,
        burst_s: float,
        metrics: Family[QuotaMetrics],
        changed: Callable[[], None],
        mutation_burst_s: float = 11.0,
    ) -> None:
        """`changed` is called after every change of what is in force."""
        self._clock = clock
        self.burst_s = burst_s
        self._mutation_burst_s = mutation_burst_s
        self._metrics = metrics
        self._changed = changed
        self.limits: Mapping[Entity, Limits] = {}  # that are set
        self._labels: dict[Entity, tuple[str, str]] = {}  # of those in metrics
        self._accounts: dict[Entity, Account] = {}
        self._budgets: dict[tuple[QuotaRow, Entity], Budget] = {}
        self._next_look_s = 0.0
        self._next_sentence_s = -_SENTENCE_EVERY_S

    def __len__(self) -> int:
        """How many accounts there are."""
        return len(self._accounts)

    def now_s(self) -> float:
        return self._clock.monotonic_ns() / _NS_PER_S

    # Who has which

    def replace(self, limits: Mapping[Entity, Limits]) -> None:
        """Replace everything."""
        given = {entity: each for entity, each in limits.items() if each}
        if given == self.limits:
            return
        self.limits = given
        self._labels = _labels(given)
        self._show()
        for who, account in self._accounts.items():
            account.meters = self._meters(who)
        self._keep({who: each for who, each in self._accounts.items() if each.meters})
        self._changed()

    def set(self, entity: Entity, limits: Limits) -> None:
        """Replace those of one entity."""
        self.replace({**self.limits, entity: limits})

    def _meters(self, who: Entity) -> dict[QuotaRow, Meter]:
        """The client's meters; what it owes by those that it had stays owed."""
        now_s, made = self.now_s(), {}
        user, client_id = who.user or "", who.client_id or DEFAULT_ENTITY
        for row, value, entity in in_force(self.limits, user, client_id):
            payer, rate = _payer(entity, who), value / row.per
            budget = self._budgets.get((row, payer))
            if budget is None:
                burst_s = self._mutation_burst_s if row is MUTATION else self.burst_s
                budget = self._budgets[row, payer] = Budget(rate, burst_s, now_s)
            else:
                budget.change_rate(rate, now_s)
            metrics = self._metrics[*self._labels[entity], row.noun]
            made[row] = Meter(row, payer, budget, metrics)
        return made

    def _keep(self, accounts: dict[Entity, Account]) -> None:
        """Forget the other accounts, and the budgets that only they had."""
        self._accounts = accounts
        meters = [meter for each in accounts.values() for meter in each.meters.values()]
        self._budgets = {(meter.row, meter.payer): meter.budget for meter in meters}

    def _show(self) -> None:
        """Have metrics of the quotas that are set, and of no others."""
        limits = {
            (*label, ROWS[name].noun): 0.0 if OTHERS in label else value / ROWS[name].per
            for entity, label in self._labels.items()
            for name, value in self.limits[entity].items()
        }
        for labels in self._metrics.keys() - limits.keys():
            del self._metrics[labels]
        for labels, limit in limits.items():
            self._metrics[labels].limit = limit

    # Who is asking

    def account(self, user: str, client_id: str | None) -> Account | None:
        """The client's account; None if it has no quota. Ask again after a while."""
        who = Entity(user, client_id or "")
        return self._accounts.get(who) or self._open(who)

    def _open(self, who: Entity) -> Account | None:
        user, client_id = who
        if not any(in_force(self.limits, user or "", client_id or "")):
            return None
        self._maybe_forget()
        if len(self._accounts) >= CLIENTS_MAX and not any(
            Entity(each, client_id) in self.limits for each in (user, DEFAULT_ENTITY, None)
        ):
            who = Entity(user, None)
            if who in self._accounts:
                return self._accounts[who]
        account = self._accounts[who] = Account(self)
        account.meters = self._meters(who)
        return account

    def _maybe_forget(self) -> None:
        """Forget the accounts that are like new ones; those of clients that are idle are."""
        now_s = self.now_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + (1.0 if len(self._accounts) >= _CROWD else _LOOK_EVERY_S)
            self._keep(
                {who: each for who, each in self._accounts.items() if not each.is_new(now_s)}
            )

    def say(self, row: QuotaRow, payer: Entity, pause_s: float) -> None:
        """Name one that is throttled in the log, now and then one."""
        now_s = self.now_s()
        if now_s >= self._next_sentence_s:
            self._next_sentence_s = now_s + _SENTENCE_EVERY_S
            name = Entity(*(each and each[:_LONGEST_NAME] for each in payer))
            logger.info("%s is over its %s: it pauses for %.3f s", name, row.name, pause_s)


def _payer(entity: Entity, who: Entity) -> Entity:
    """Whose budget a quota of `entity` is for one of its clients (pure).

    Clients that share one, for want of room, do so among those of their user.
    """
    if entity.client_id is None:
        return Entity(who.user, None)
    if who.client_id is None:
        return Entity(who.user, OTHERS)
    return Entity(None if entity.user is None else who.user, who.client_id)


def _labels(given: Collection[Entity]) -> dict[Entity, tuple[str, str]]:
    """What metrics call each of them: user and client (pure)."""
    texts = {each: (each.user or "", each.client_id or "") for each in given}
    of_all = {each for each in given if {*each} <= {None, DEFAULT_ENTITY}}
    # One whose name is what the others are called is one of them.
    own = [each for each in given if OTHERS not in each and each not in of_all]
    named = of_all.union(sorted(own, key=lambda each: texts[each])[:NAMED_MAX])
    return {each: text if each in named else ("", OTHERS) for each, text in texts.items()}


class StoredQuotas:
    """Has `quotas` follow what is stored. Owner: the broker.

    They are read at start, and as they change. While ZooKeeper is lost, those that were read last
    stay in force.
    """

    def __init__(self, zk: ZooKeeper, quotas: Quotas) -> None:
        self._zk = zk
        self.quotas = quotas

    async def load(self, kind: str) -> None:
        """Read all quotas that there are of one kind of owner."""
        found = await read_all(self._zk, kind)
        others = {
            entity: limits
            for entity, limits in self.quotas.limits.items()
            if not entity.owner.path.startswith(f"/config/{kind}/")
        }
        self.quotas.replace(others | {each: limits_of(each, found[each]) for each in found})

    async def reload(self, entity: Entity) -> None:
        """Re-read those of one entity."""
        stored = (await read(self._zk, entity))[entity]
        self.quotas.set(entity, limits_of(entity, stored))

    def follower(self, kind: str) -> FollowedQuotas:
        """For the changes of one kind of owner, a znode's name below `/config`."""
        return FollowedQuotas(self, kind)


@dataclass(frozen=True)
class FollowedQuotas:
    """The quotas of one kind of owner, as `SettingsChanges` follows them."""

    stored: StoredQuotas
    kind: str

    async def load_all(self) -> None:
        await self.stored.load(self.kind)

    reload_all = load_all

    async def reload(self, *names: str) -> None:
        for name in names:
            entity = entity_of(f"/config/{self.kind}/{name}")
            if entity is not None:
                await self.stored.reload(entity)


class Throttle:
    """Owner: the request's `Call`. `pause_s` is the longest of the pauses it has led to."""

    __slots__ = (
        "_busy_ns",
        "_key",
        "_mutated_s",
        "_quotas",
        "_who",
        "is_held",
        "pause_s",
        "timed_ns",
    )

    def __init__(self, quotas: Quotas, who: tuple[str, str | None], key: int) -> None:
        self._quotas = quotas
        self._who = who
        self._key = key
        self._busy_ns = 0
        self._mutated_s = 0.0
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

    def take(self, partitions: int, *, is_strict: bool) -> bool:
        """Charge partitions that are to be created or deleted; whether they may be.

        If it `is_strict`, none may be while the client owes for others.
        """
        account = self._quotas.account(*self._who)
        if account is None:
            return True
        may = not (is_strict and account.owes_for_mutations)
        self._mutated_s = account.mutated(partitions if may else 0)
        return may

    def charge(self, size: int, now_ns: int) -> float:
        """Charge the answer's bytes, and the time that the request has taken.

        Returns for how many seconds the client has to pause because of these.
        """
        self.end_step(now_ns)
        account = self._quotas.account(*self._who)
        if account is None:
            return 0.0
        is_fetched = self._key == fetch.API.key and not self.is_held
        fetched_s = account.fetched(size) if is_fetched else 0.0
        busy_s = account.kept_busy(self._busy_ns / _NS_PER_S)
        pause_s = max(fetched_s, busy_s, self._mutated_s)
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
        who = subject.principal.name, header.client_id
        account = self.quotas.account(*who)
        if account is None or self._is_free(header.api_key, request, subject):
            return None
        throttle = Throttle(self.quotas, who, header.api_key)
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
