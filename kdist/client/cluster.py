"""A client's view of a cluster: connections to brokers, metadata, leaders, retries.

Connections are made when first needed, to the addresses in the metadata; bootstrap addresses are
only used to request metadata. After a retriable error a request is retried with fresh metadata for
up to `retry_ms`; then that error is raised.
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import os
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from kdist.client.backoff import backoff_s
from kdist.client.outages import CLUSTER, Outages
from kdist.errors import ApiError, Error, UserError
from kdist.model import NO_LEADER, TopicPartition, read_digits
from kdist.network.client import Client, ClientSettings
from kdist.network.network import AsyncioNetwork, Network
from kdist.protocol.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicResult,
)
from kdist.protocol.schema import NEVER

RETRY_MS = 30_000
MISSING_S = 10.0
"""A topic that no broker knows for so long was deleted; sooner, one may not have heard of it."""
NEXT_AFTER_S = 2.0  # far longer than a healthy broker takes

K = TypeVar("K")
T = TypeVar("T")


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class NoBroker(UserError):
    """No broker answers: neither the known ones nor the bootstrap addresses."""


class Outcome(NamedTuple):
    """A leader's result for one partition: 0 and the answer, or an error code and its message."""

    error_code: int
    answer: Any = None


Outcomes = Mapping[TopicPartition, Outcome]
REFUSALS = (
    Error.SASL_AUTHENTICATION_FAILED,
    Error.UNSUPPORTED_SASL_MECHANISM,
    Error.ILLEGAL_SASL_STATE,
)
"""What a broker says who does not let a client in: all others would, too."""
_LEADERLESS = Outcome(Error.LEADER_NOT_AVAILABLE.code)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """`host:port[,host:port...]`; IPv6 in brackets. `UserError` for anything else."""
    return tuple(_address(part.strip()) for part in text.split(","))


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = read_digits(port) or 0
    if not host or (":" in host and not bracketed) or not 0 < number < 65536:
        raise UserError(f"{text!r} is not a broker's address: give host:port")
    return Address(host[1:-1] if bracketed else host, number)


def raise_for(code: int, about: str = "", message: str | None = None) -> None:
    """Raise an `ApiError`, as `api_error` makes it, unless the code is 0."""
    if code:
        raise api_error(Error.of(code), about, message)


def api_error(error: Error, about: str, message: str | None = None) -> ApiError:
    """An error, with what it is about; `message` is the broker's own message, if it sent one."""
    sentence = (message or error.sentence).removeprefix(f"{error.name}: ")
    return ApiError(error, f"{about}: {sentence}" if about else sentence)


def raise_worst(failed: Mapping[TopicPartition, Outcome]) -> None:
    """Raise the first error that is not retriable; else that of a partition that does not exist;
    else the first; nothing if there is none.
    """

    def hope(each: tuple[TopicPartition, Outcome]) -> tuple[bool, bool]:
        error = Error.of(each[1].error_code)
        return error.retriable, error is not Error.UNKNOWN_TOPIC_OR_PARTITION

    if failed:
        partition, outcome = min(failed.items(), key=hope)
        raise_for(outcome.error_code, str(partition), outcome.answer)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`: did you mean clicks?`, or an empty string if no name is similar."""
    nearest = difflib.get_close_matches(name, list(names), n=1)
    return f": did you mean {nearest[0]}?" if nearest else ""


class Lane:
    """A set of connections for one purpose, which others do not wait behind. Owner: the loop.

    A broker answers the requests on a connection in order, and some only after long: a JoinGroup
    once all members have joined, a fetch once there are records. `close` it when done.
    """

    def __init__(self, network: Network, cluster: Cluster, settings: ClientSettings) -> None:
        self._network = network
        self._cluster = cluster
        self._settings = settings
        self._clients: dict[Address, Client] = {}
        self._locks: defaultdict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._is_closed = False

    async def client(self, broker_id: int) -> Client:
        """A connection to a broker that metadata named; `ApiError` NETWORK_EXCEPTION."""
        address = self._cluster.brokers.get(broker_id)
        if address is None:
            # It may come back, so a retriable error: not BROKER_NOT_AVAILABLE, which is not.
            raise ApiError(Error.NETWORK_EXCEPTION, f"there is no broker {broker_id}")
        try:
            return await self.connected(address)
        except ApiError as error:
            self._cluster.outages.lost(f"broker {address}", why_not(error, address))
            raise

    async def connected(self, address: Address) -> Client:
        """A connection to an address; `ApiError` NETWORK_EXCEPTION.

        `UserError` once the lane is closed, so that a retry does not connect again.
        """
        client = self._clients.get(address)
        if client is not None and not client.is_closed:
            return client
        async with self._locks[address]:
            if self._is_closed:
                raise UserError("the client is closed")
            client = self._clients.get(address)
            if client is None or client.is_closed:
                client = await self._connect(address)
            return client

    async def _connect(self, address: Address) -> Client:
        client = await Client.connect_negotiated(self._network, *address, self._settings)
        self._clients[address] = client
        self._cluster.outages.back(f"broker {address}")
        if self._is_closed:  # while connecting
            client.close()
        return client

    def close(self) -> None:
        """Close all connections, for good; requests in flight fail with NETWORK_EXCEPTION."""
        self._is_closed = True
        for client in self._clients.values():
            client.close()


class Cluster:
    """The brokers of one cluster. Owner: the loop; `close` it when done."""

    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[Address],
        settings: ClientSettings,
        retry_ms: float = RETRY_MS,
    ) -> None:
        self.bootstrap = bootstrap
        self.brokers: dict[int, Address] = {}
        self.controller_id = -1
        self.leaders: dict[TopicPartition, int] = {}
        self.outages = Outages(network.loop.time)
        self._answered: Address | None = None  # the broker that last answered
        self._network = network
        self._lane = Lane(network, self, settings)
        self._retry_s = retry_ms / 1000

    def close(self) -> None:
        self._lane.close()

    # Brokers

    async def client(self, broker_id: int) -> Client:
        """A connection to a broker that metadata named; `ApiError` NETWORK_EXCEPTION."""
        return await self._lane.client(broker_id)

    def in_turn(self) -> list[int]:
        """The brokers in the order to try them if any will do: the one that last answered is first.

        By number alone, a hanging broker with the lowest number would cost its timeout every time.
        """
        return sorted(self.brokers, key=lambda each: (self.brokers[each] != self._answered, each))

    async def any_client(self) -> Client:
        """A connection to the first broker `in_turn` that accepts one, else the first's error."""
        first: ApiError | None = None
        for broker in self.in_turn():
            try:
                return await self._lane.connected(self.brokers[broker])
            except ApiError as error:
                first = first or error
        # A broker that has just started may name no brokers yet, which is retriable.
        raise first or ApiError(Error.NETWORK_EXCEPTION, "the brokers do not know each other yet")

    async def ask(self, request: Any, broker_id: int, newest: int = NEVER) -> Any:
        """The broker's answer to a request, sent in the highest common version up to `newest`."""
        client = await self.client(broker_id)
        return await client.send(request, client.version_of(request.api, newest))

    # Metadata

    async def look_up(
        self, topics: Iterable[str] | None = (), *, may_create: bool = False
    ) -> MetadataResponse:
        """Request metadata of brokers and `topics`, with None of all topics. Notes the brokers.

        With `may_create`, brokers that create topics automatically create those that are missing.
        """
        named = None if topics is None else [MetadataTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=may_create)
        answer: MetadataResponse = await self.ask_any(request)
        # We ask by name, so a topic without a name answers nothing.
        answer.topics = [topic for topic in answer.topics if topic.name is not None]
        self.brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        self.controller_id = answer.controller_id
        return answer

    async def metadata(self, topics: Iterable[str] | None = ()) -> MetadataResponse:
        """As `look_up`, which notes the leaders too. Creates no topic."""
        answer = await self.look_up(topics)
        gone = {t.name for t in answer.topics if t.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION}
        if gone:
            self.leaders = {k: leader for k, leader in self.leaders.items() if k.topic not in gone}
        for topic in answer.topics:
            for each in topic.partitions:
                assert topic.name is not None, "topics were asked for by name"
                key = TopicPartition(topic.name, each.partition_index)
                self.leaders[key] = each.leader_id
        return answer

    async def ask_any(self, request: Any) -> Any:
        """The first answer from any broker: known ones are tried first, then the bootstrap.

        A hanging broker delays the next one only briefly. `NoBroker` if none answers.
        """
        known = (self.brokers[each] for each in self.in_turn())

        async def ask(address: Address) -> Any:
            return await (await self._lane.connected(address)).send(request)

        found = await first_answer(dict.fromkeys((*known, *self.bootstrap)), ask)
        if isinstance(found, Answered):
            self._answered = found.by
            self.outages.back(CLUSTER)
            return found.answer
        if not found:
            raise NoBroker("no broker is known: with zk_connect, call `start` first")
        for error in found.values():
            if error.error in REFUSALS:
                raise error
        tried = "; ".join(f"{each} ({why_not(error, each)})" for each, error in found.items())
        why = f"no broker answers at {tried}"
        if self._answered is not None:  # else whoever asks is the first to hear of it
            self.outages.lost(CLUSTER, why)
        raise NoBroker(why)

    async def topic(self, name: str) -> MetadataTopicResult:
        """A topic's metadata, its partitions in order, some of which may have no leader.

        `UserError`, with the nearest name, if the topic does not exist.
        """
        answer = await self.retried(lambda: self._known_topic(name))
        if answer is None:
            known = await self.metadata(None)
            names = [each.name for each in known.topics if each.name]
            raise UserError(f"there is no topic {name}{did_you_mean(name, names)}")
        return answer

    async def _known_topic(self, name: str) -> MetadataTopicResult | None:
        (topic,) = (await self.metadata([name])).topics
        if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise_for(topic.error_code, f"topic {name}")
        topic.partitions.sort(key=lambda each: each.partition_index)
        return topic

    async def led(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> list[TopicPartition]:
        """Those that have a leader; waits up to `timeout_s` for all (None: `retry_ms`)."""
        wanted = sorted(partitions)
        found: list[TopicPartition] = []

        async def look() -> None:
            await self.metadata({topic for topic, _ in wanted})
            found[:] = [each for each in wanted if self.leaders.get(each, NO_LEADER) != NO_LEADER]
            if found != wanted:
                raise ApiError(Error.LEADER_NOT_AVAILABLE)

        if wanted:
            with suppress(ApiError):
                await self.retried(look, timeout_s)
        return found

    # Trying again

    async def retried(
        self,
        work: Callable[[], Awaitable[T]],
        timeout_s: float | None = None,
        *,
        may_pass: Callable[[ApiError | NoBroker], bool] | None = None,
        pause_s: Callable[[int], float] = backoff_s,
    ) -> T:
        """What `work` returns, retried after errors that `may_pass`; the last one when time is up.

        By default for up to `retry_ms`, after the errors that `Cluster.may_pass` says. `pause_s`
        has the pause after so many earlier failures.
        """
        may_pass = may_pass or self.may_pass
        now_s = self._network.loop.time
        end_s = now_s() + (self._retry_s if timeout_s is None else timeout_s)
        for failures in itertools.count():
            try:
                return await work()
            except (ApiError, NoBroker) as error:
                if not may_pass(error) or now_s() >= end_s:
                    raise
            await asyncio.sleep(pause_s(failures))
        raise AssertionError("it counts for ever")

    def may_pass(self, error: ApiError | NoBroker) -> bool:
        """Whether to retry. `NoBroker` is retriable only once a broker has answered before."""
        return bool(self.brokers) if isinstance(error, NoBroker) else error.error.retriable

    async def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
        missing_s: float = MISSING_S,
    ) -> dict[TopicPartition, Any]:
        """The answer of each partition's leader; `ask` sends one leader a request for several.

        Partitions with a retriable error are retried, at the new leader if it has moved; those that
        their leader does not know only for `MISSING_S`, and those that the metadata lacks only for
        `missing_s`.
        """
        answers: dict[TopicPartition, Any] = {}
        waiting = set(partitions)
        missing_since_s: dict[TopicPartition, float] = {}

        async def round_of_asking() -> None:
            failed = {}
            for partition, outcome in (await self.ask_leaders_once(waiting, ask)).items():
                if outcome.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code:
                    missing_since_s.setdefault(partition, self._network.loop.time())
                else:
                    missing_since_s.pop(partition, None)
                if outcome.error_code:
                    failed[partition] = outcome
                else:
                    answers[partition] = outcome.answer
                    waiting.discard(partition)
            gone = {each: failed[each] for each in failed if is_gone(each)}
            raise_worst(gone or failed)

        def is_gone(partition: TopicPartition) -> bool:
            since_s = missing_since_s.get(partition)
            wait_s = MISSING_S if partition in self.leaders else missing_s
            return since_s is not None and since_s + wait_s <= self._network.loop.time()

        def may_pass(error: ApiError | NoBroker) -> bool:
            return self.may_pass(error) and not any(map(is_gone, missing_since_s))

        if waiting:
            await self.retried(round_of_asking, may_pass=may_pass)
        return answers

    async def ask_leaders_once(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
    ) -> dict[TopicPartition, Outcome]:
        """Each leader's outcome now, in partition order. After an error the leader is forgotten, so
        that the next call looks it up.
        """
        wanted = sorted(partitions)
        if any(self.leaders.get(each, NO_LEADER) == NO_LEADER for each in wanted):
            await self.metadata({topic for topic, _ in wanted})
        found = await self._ask_each(by_leader(self.leaders, wanted), ask)
        outcomes = {
            each: found.get(each) or (_LEADERLESS if each in self.leaders else self._unknown(each))
            for each in wanted
        }
        for partition, outcome in outcomes.items():
            if outcome.error_code and partition in self.leaders:
                self.leaders[partition] = NO_LEADER  # to be looked up, the next time
        return outcomes

    def _unknown(self, partition: TopicPartition) -> Outcome:
        """The outcome for a partition that metadata does not have, with what it does have."""
        count = sum(each.topic == partition.topic for each in self.leaders)
        has = f"topic {partition.topic} has partitions 0 to {count - 1}"
        return Outcome(Error.UNKNOWN_TOPIC_OR_PARTITION.code, has if count else "no such topic")

    async def _ask_each(
        self,
        wanted: Mapping[int, list[TopicPartition]],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
    ) -> dict[TopicPartition, Outcome]:
        """Ask all leaders at once; if one cannot be reached, its partitions have that error."""
        outcomes: dict[TopicPartition, Outcome] = {}

        async def ask_one(leader: int, partitions: list[TopicPartition]) -> None:
            try:
                outcomes.update(await ask(leader, partitions))
            except ApiError as error:
                outcome = Outcome(error.error, error.detail)
                outcomes.update((each, outcome) for each in partitions)

        await asyncio.gather(*(ask_one(*each) for each in wanted.items()))
        return outcomes


@contextmanager
def cluster_at(
    addresses: Sequence[Address], client: str | ClientSettings, retry_ms: float = RETRY_MS
) -> Iterator[Cluster]:
    """A cluster on the machine's network and the running loop, closed in the end.

    `client`: its settings, or only its name.
    """
    network = AsyncioNetwork(asyncio.get_running_loop())
    settings = ClientSettings(client) if isinstance(client, str) else client
    cluster = Cluster(network, addresses, settings, retry_ms)
    try:
        yield cluster
    finally:
        cluster.close()


def by_leader(
    leaders: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> dict[int, list[TopicPartition]]:
    """Partitions by leader, in order; those without a leader are left out."""
    found: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for partition in sorted(partitions):
        leader = leaders.get(partition, NO_LEADER)
        if leader != NO_LEADER:
            found[leader].append(partition)
    return dict(found)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Sorted partition numbers by topic, the form that requests use."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        found[topic].append(number)
    return dict(found)


def in_topics(
    kind: type[T],
    partitions: Iterable[TopicPartition],
    one: Callable[[TopicPartition], object],
    name: str = "name",
    rows: str = "partitions",
) -> list[T]:
    """The topics of a request, of its class `kind`; `one` makes the row of a partition.

    `name` and `rows` are the fields that have a topic's name and its rows.
    """
    return [
        kind(**{name: topic, rows: [one(TopicPartition(topic, number)) for number in numbers]})
        for topic, numbers in by_topic(partitions).items()
    ]


def why_not(error: ApiError, address: Address) -> str:
    """Why there is no connection to an address, without the address."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno:
        known = cause.errno > 0  # name resolution errors have negative numbers of their own
        return (os.strerror(cause.errno) if known else str(cause.strerror)).lower()
    return error.detail.removeprefix(str(address)).lstrip(": ")


class Answered(NamedTuple):
    """The first answer, and who gave it."""

    by: Any
    answer: Any


async def first_answer(
    those: Iterable[K], ask: Callable[[K], Coroutine[Any, Any, Any]]
) -> Answered | dict[K, ApiError]:
    """The first answer of those asked in order; if all fail, each one's error in that order.

    A broker that is down refuses at once. A host that is frozen, or drops packets, stays silent for
    the whole connect or request timeout, and waiting for it first would cost that every time. So
    the next is asked as well after `NEXT_AFTER_S`, and the requests left are cancelled in the end.
    """
    order = list(those)
    left = deque(order)
    asked: dict[asyncio.Task[Any], K] = {}
    failures: dict[K, ApiError] = {}
    try:
        while left or asked:
            if left:
                each = left.popleft()
                asked[asyncio.create_task(ask(each))] = each
            done, _ = await asyncio.wait(
                asked,
                timeout=NEXT_AFTER_S if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            answers = []
            for task in done:
                each = asked.pop(task)
                try:
                    answers.append(Answered(each, task.result()))
                except ApiError as error:
                    failures[each] = error
            if answers:
                return answers[0]
    finally:
        for task in asked:
            task.cancel()
    return {each: failures[each] for each in order}
