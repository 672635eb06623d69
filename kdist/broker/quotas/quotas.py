"""The clients that have a quota, and what is left of it.

A client is whoever sends its client id; without users, nothing proves it. Each has one budget for
each of its quotas, over all its connections to this broker. The budgets are made when a client is
heard, and forgotten once they have full credit again, which changes nothing. Peers can make up
client ids, so at most `CLIENTS_MAX` clients that have only the default quota get a budget of their
own: any further ones share one.

Metrics name a client only if it has a quota of its own, which an operator gave it, and then only
the first `NAMED_MAX` by their ids: any further ones are counted together, as all others are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kdist.broker.quotas.budget import Budget
from kdist.broker.quotas.limits import FETCH, PRODUCE, REQUEST, Limits, QuotaRow, in_force
from kdist.metrics.declare import Family
from kdist.metrics.quotas import QuotaMetrics
from kdist.runtime.clock import Clock
from kdist.zk.znodes import DEFAULT_ENTITY

logger = logging.getLogger(__name__)

CLIENTS_MAX = 10_000
NAMED_MAX = 200
OTHERS = "<others>"  # in metrics, clients with quotas of their own beyond that number
PAUSE_S_MIN = 0.001  # the wire has milliseconds; what is less stays owed
_CROWD = 1000  # with so many accounts, what can be forgotten is looked for each second
_LOOK_EVERY_S = 60.0
_NS_PER_S = 1_000_000_000
_SENTENCE_EVERY_S = 30.0
_LONGEST_NAME = 100  # of a client id in a log line


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
    """Owner: the broker. `changed` is called after every change of what is in force."""

    def __init__(
        self,
        clock: Clock,
        burst_s: float,
        metrics: Family[QuotaMetrics],
        changed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self.burst_s = burst_s
        self._metrics = metrics
        self._changed = changed
        self._limits: dict[str, Limits] = {}  # by client id, and the default's
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
        if given == self._limits:
            return
        self._limits = given
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
        self.replace({**self._limits, client_id: limits})

    def _meters(self, client_id: str, before: Mapping[QuotaRow, Meter]) -> dict[QuotaRow, Meter]:
        """The client's meters; what it owes by those that it had stays owed."""
        now_s, made = self.now_s(), {}
        own = {} if client_id == DEFAULT_ENTITY else self._limits.get(client_id, {})
        for row, value, is_own in in_force(own, self._limits.get(DEFAULT_ENTITY, {})):
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
            for row, value, _ in in_force(self._limits[client_id], {})
        }
        for labels in self._metrics.keys() - limits.keys():
            del self._metrics[labels]
        for labels, limit in limits.items():
            self._metrics[labels].limit = limit

    # Who is asking

    def account(self, client_id: str | None) -> Account | None:
        """The client's account; None if it has no quota. Ask again after a while."""
        if not self._limits:
            return None
        name = client_id or ""
        return self._accounts.get(name) or self._open(name)

    def _open(self, client_id: str) -> Account | None:
        is_known = client_id in self._limits and client_id != DEFAULT_ENTITY
        if not (is_known or DEFAULT_ENTITY in self._limits):
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
