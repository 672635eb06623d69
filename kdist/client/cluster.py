"""A cluster's brokers as a client reaches them: connections, metadata, leaders, retries.

Connections are made when they are first needed, to the addresses that metadata gives; the bootstrap
addresses are only asked for it. A retriable error is tried again, with fresh metadata, until
`retry_ms` are over; then it is raised as it was.
"""

from __future__ import annotations

import asyncio
import difflib
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kdist.client.racing import Answered, first_answer
from kdist.errors import ApiError, Error, UserError
from kdist.model import NO_LEADER, TopicPartition, read_digits
from kdist.network.client import Client, ClientSettings
from kdist.network.world import Network
from kdist.protocol.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicResult,
)

RETRY_MS = 30_000
_PAUSE_S = 0.1

T = TypeVar("T")


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class NoBroker(UserError):
    """None of the bootstrap addresses answers."""


class Outcome(NamedTuple):
    """What a leader says of one partition: 0 and the answer, or an error's code and sentence."""

    error_code: int
    answer: Any = None


Outcomes = Mapping[TopicPartition, Outcome]
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
    """`ApiError` unless the code is 0; `message` as `api_error` has it."""
    if code:
        raise api_error(Error.of(code), about, message)


def api_error(error: Error, about: str, message: str | None = None) -> ApiError:
    """An error, and what it is about; `message` is the broker's own sentence, if it sent one."""
    sentence = (message or error.sentence).removeprefix(f"{error.name}: ")
    return ApiError(error, f"{about}: {sentence}" if about else sentence)


def raise_worst(failed: Mapping[TopicPartition, Outcome]) -> None:
    """`ApiError` for the first that is not retriable, else for the first; nothing for none."""
    if failed:
        partition, outcome = min(
            failed.items(), key=lambda each: Error.of(each[1].error_code).retriable
        )
        raise_for(outcome.error_code, str(partition), outcome.answer)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`: did you mean clicks?`, or nothing if no name is near."""
    nearest = difflib.get_close_matches(name, list(names), n=1)
    return f": did you mean {nearest[0]}?" if nearest else ""


class Lane:
    """Connections for one purpose, so that no other waits behind it. Owner: the loop.

    A broker answers a connection's requests in order, and holds some back for long: a JoinGroup
    until all members have joined, a fetch until there is something. Made when first needed; `close`
    it in the end.
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
            # Gone since, perhaps to come again: not BROKER_NOT_AVAILABLE, which is for good.
            raise ApiError(Error.NETWORK_EXCEPTION, f"there is no broker {broker_id}")
        return await self.connected(address)

    async def connected(self, address: Address) -> Client:
        """A connection to whoever listens there; `ApiError` NETWORK_EXCEPTION.

        `UserError` once the lane is closed: who tries again shall not open it anew.
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
        if self._is_closed:  # meanwhile
            client.close()
        return client

    def close(self) -> None:
        """Close all, for good; who waits hears NETWORK_EXCEPTION."""
        self._is_closed = True
        for client in self._clients.values():
            client.close()


class Cluster:
    """The brokers of one cluster. Owner: the loop; `close` it in the end."""

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
        self._answered: Address | None = None  # who did last
        self._network = network
        self._lane = Lane(network, self, settings)
        self._retry_s = retry_ms / 1000

    def close(self) -> None:
        """Close every connection."""
        self._lane.close()

    # Brokers

    async def client(self, broker_id: int) -> Client:
        """A connection to a broker that metadata named; `ApiError` NETWORK_EXCEPTION."""
        return await self._lane.client(broker_id)

    def in_turn(self) -> list[int]:
        """The brokers in the order in which to ask if any will do: who answered last is first.

        One that hangs, and comes first by number, would take its time out each time.
        """
        return sorted(self.brokers, key=lambda each: (self.brokers[each] != self._answered, each))

    async def any_client(self) -> Client:
        """A connection to the first `in_turn` that takes one, else that one's error."""
        first: ApiError | None = None
        for broker in self.in_turn():
            try:
                return await self.client(broker)
            except ApiError as error:
                first = first or error
        # A broker that has just started knows of none, and tells so: that passes.
        raise first or ApiError(Error.NETWORK_EXCEPTION, "the brokers do not know each other yet")

    async def ask(self, request: Any, broker_id: int) -> Any:
        """One broker's answer."""
        return await (await self.client(broker_id)).send(request)

    # Metadata

    async def metadata(self, topics: Iterable[str] | None = ()) -> MetadataResponse:
        """Brokers, and what is known of `topics`, of all with None. Creates none."""
        named = None if topics is None else [MetadataTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        answer: MetadataResponse = await self.ask_any(request)
        # A topic without a name is no answer to what was asked.
        answer.topics = [topic for topic in answer.topics if topic.name is not None]
        self.brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        self.controller_id = answer.controller_id
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
        """The answer of the first that gives one: brokers that are known, then the bootstrap.

        One that hangs holds the next up for a moment only. `NoBroker` if none answers.
        """
        known = (self.brokers[each] for each in self.in_turn())

        async def ask(address: Address) -> Any:
            return await (await self._lane.connected(address)).send(request)

        found = await first_answer(dict.fromkeys((*known, *self.bootstrap)), ask)
        if isinstance(found, Answered):
            self._answered = found.by
            return found.answer
        if not found:
            raise NoBroker("no broker is known: who is to find them by zk_connect is started first")
        tried = "; ".join(f"{address} ({_why(error, address)})" for address, error in found.items())
        raise NoBroker(f"no broker answers at {tried}")

    async def topic(self, name: str) -> MetadataTopicResult:
        """A topic that exists, its partitions in order; `UserError` with the nearest name if not.

        Waits for leaders.
        """
        answer = await self.retried(lambda: self._led_topic(name))
        if answer is None:
            known = await self.metadata(None)
            names = [each.name for each in known.topics if each.name]
            raise UserError(f"there is no topic {name}{did_you_mean(name, names)}")
        return answer

    async def _led_topic(self, name: str) -> MetadataTopicResult | None:
        (topic,) = (await self.metadata([name])).topics
        if topic.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise_for(topic.error_code, f"topic {name}")
        for each in topic.partitions:
            if each.leader_id == NO_LEADER:
                raise_for(Error.LEADER_NOT_AVAILABLE, f"{name}-{each.partition_index}")
        topic.partitions.sort(key=lambda each: each.partition_index)
        return topic

    # Trying again

    async def retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives once it raises no error that may pass; that error when time is up."""
        end_s = self._network.loop.time() + self._retry_s
        while True:
            try:
                return await work()
            except (ApiError, NoBroker) as error:
                if not self.may_pass(error) or self._network.loop.time() > end_s:
                    raise
            await asyncio.sleep(_PAUSE_S)

    def may_pass(self, error: ApiError | NoBroker) -> bool:
        """A cluster that was there may come again; one that never was, is not waited for."""
        return bool(self.brokers) if isinstance(error, NoBroker) else error.error.retriable

    async def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
    ) -> dict[TopicPartition, Any]:
        """The answer for each partition, from its leader; `ask` asks one for several.

        What fails with a retriable error is asked for again, elsewhere if the leader has moved.
        """
        answers: dict[TopicPartition, Any] = {}
        waiting = set(partitions)

        async def round_of_asking() -> None:
            failed = {}
            for partition, outcome in (await self.ask_leaders_once(waiting, ask)).items():
                if outcome.error_code:
                    failed[partition] = outcome
                else:
                    answers[partition] = outcome.answer
                    waiting.discard(partition)
            raise_worst(failed)

        if waiting:
            await self.retried(round_of_asking)
        return answers

    async def ask_leaders_once(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
    ) -> dict[TopicPartition, Outcome]:
        """What each partition's leader says, in order; of those that fail it is looked up anew."""
        wanted = sorted(partitions)
        if any(self.leaders.get(each, NO_LEADER) == NO_LEADER for each in wanted):
            await self.metadata({topic for topic, _ in wanted})
        found = await self._ask_each(by_leader(self.leaders, wanted), ask)
        outcomes = {each: found.get(each, _LEADERLESS) for each in wanted}
        for partition, outcome in outcomes.items():
            if outcome.error_code:
                self.leaders[partition] = NO_LEADER  # to be looked up, the next time
        return outcomes

    async def _ask_each(
        self,
        wanted: Mapping[int, list[TopicPartition]],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
    ) -> dict[TopicPartition, Outcome]:
        """All leaders at once; one that cannot be reached has that error for its partitions."""
        outcomes: dict[TopicPartition, Outcome] = {}

        async def ask_one(leader: int, partitions: list[TopicPartition]) -> None:
            try:
                outcomes.update(await ask(leader, partitions))
            except ApiError as error:
                outcome = Outcome(error.error, error.detail)
                outcomes.update((each, outcome) for each in partitions)

        await asyncio.gather(*(ask_one(*each) for each in wanted.items()))
        return outcomes


def by_leader(
    leaders: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> dict[int, list[TopicPartition]]:
    """The partitions that each leader has, in order; those without one are left out."""
    found: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for partition in sorted(partitions):
        leader = leaders.get(partition, NO_LEADER)
        if leader != NO_LEADER:
            found[leader].append(partition)
    return dict(found)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, as requests want them."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        found[topic].append(number)
    return dict(found)


def _why(error: ApiError, address: Address) -> str:
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno:
        known = cause.errno > 0  # a name that is not found has a number of its own
        return (os.strerror(cause.errno) if known else str(cause.strerror)).lower()
    return error.detail.removeprefix(str(address)).lstrip(": ")
