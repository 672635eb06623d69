"""A group in ZooKeeper: its members, the owner of each partition, and the committed offsets.

    /consumers/G/ids/C          ephemeral   what consumer C subscribes to
    /consumers/G/owners/T/P     ephemeral   the stream that owns partition P of topic T
    /consumers/G/offsets/T/P    persistent  its next offset

Only a partition's owner commits its offset. ZooKeeper refuses requests of an ended session, and
while the session that created an owner znode lives, no other session can create it. So each commit
is a transaction in that session, which also checks that the owner znode exists and that nobody else
has written the offset. A release commits and gives up ownership in one transaction. Source: the
founding paper, section 3.2; Kafka 0.8's `ZkUtils.scala`. Formats: docs/formats/znodes.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kdist.classic.connector.assignment import Owners, assign, ordered
from kdist.classic.connector.ownership import Ownership
from kdist.classic.connector.subscription import Subscription, read_subscription, stream_id
from kdist.client.cluster import Address
from kdist.errors import KdistError, UserError
from kdist.model import TopicPartition
from kdist.zk import znodes
from kdist.zk.client import (
    Check,
    Create,
    Delete,
    Operation,
    Set,
    Stat,
    Watch,
    WatchEvent,
    ZooKeeper,
)
from kdist.zk.errors import ConnectionLoss, CorruptZnode, MultiFailed, NodeExists, NoNode
from kdist.zk.values import ConsumerRegistration


class Member(NamedTuple):
    """A consumer of the group."""

    subscription: Subscription
    goes_by_broker: bool  # see `assignment.py`


class Group(NamedTuple):
    """A snapshot of the group, the same for all members once its changes have reached them."""

    members: Mapping[str, Member]
    preferred: Mapping[str, Mapping[int, int]]  # the broker of each partition, by topic
    brokers: tuple[Address, ...]

    def owners(self, strategy: str) -> Owners:
        """The assignment of all partitions. `UserError` if the strategy does not allow it."""
        by_broker = all(member.goes_by_broker for member in self.members.values())
        streams: dict[str, list[str]] = {}
        for name, member in self.members.items():
            for topic, count in member.subscription.streams(self.preferred).items():
                streams.setdefault(topic, []).extend(stream_id(name, n) for n in range(count))
        partitions = {
            topic: ordered(brokers, by_broker=by_broker)
            for topic, brokers in self.preferred.items()
        }
        return assign(strategy, partitions, streams)


class Lost(KdistError):
    """A partition is no longer ours, or somebody else has written its offset."""


class Registry:
    """One consumer's view of its group, and its writes there. Owner: the loop."""

    def __init__(
        self,
        zk: ZooKeeper,
        group: str,
        consumer: str,
        registration: ConsumerRegistration,
        on_change: Callable[[], None],
        *,
        exclude_internal: bool = True,
        protocol: str = "PLAINTEXT",
    ) -> None:
        self.consumer = consumer
        self._zk = zk
        self._group = group
        self._registration = registration
        self._on_change = on_change
        self._exclude_internal = exclude_internal
        self._protocol = protocol
        self._watched: set[str] = set()

    # Reading, with watches

    def _watch(self, path: str) -> Watch | None:
        """A watch for a path, or None while an earlier one has yet to fire: one is enough."""
        if path in self._watched:
            return None
        self._watched.add(path)

        def hear(_event: WatchEvent) -> None:
            self._watched.discard(path)
            self._on_change()

        return hear

    def forget_watches(self) -> None:
        """Forget all watches: they were lost with the connection."""
        self._watched.clear()

    async def _get(self, path: str) -> bytes | None:
        try:
            return (await self._zk.get(path, self._watch(path))).data
        except NoNode:
            self._watched.discard(path)
            return None  # deleted since it was listed: the list's watch will fire

    async def _children(self, path: str) -> list[str]:
        while True:
            try:
                return await self._zk.children(path, self._watch(path))
            except NoNode:
                self._watched.discard(path)
            if await self._zk.exists(path, self._watch(path)) is None:
                return []

    async def read(self) -> Group:
        """The group as it is now; `on_change` is called when it changes.

        `CorruptZnode` names what cannot be read.
        """
        ids, topics, brokers = await asyncio.gather(
            self._children(znodes.CONSUMER_IDS.path(self._group)),
            self._children(znodes.TOPICS.path()),
            self._children(znodes.BROKERS.path()),
        )
        found = await asyncio.gather(*map(self._member, ids))
        members = {name: each for name, each in zip(ids, found, strict=True) if each is not None}
        wanted = {topic for each in members.values() for topic in each.subscription.streams(topics)}
        assignments = await asyncio.gather(*map(self._preferred, sorted(wanted)))
        addresses = await asyncio.gather(*map(self._addresses, brokers))
        return Group(
            members,
            {topic: each for topic, each in zip(sorted(wanted), assignments, strict=True) if each},
            tuple(each for several in addresses for each in several),
        )

    async def _member(self, name: str) -> Member | None:
        path = znodes.CONSUMER_ID.path(self._group, name)
        data = await self._get(path)
        if data is None:
            return None
        registration = znodes.CONSUMER_ID.decode(path, data)
        try:
            wants = read_subscription(registration, exclude_internal=self._exclude_internal)
        except UserError as error:
            raise CorruptZnode(path, str(error)) from None
        return Member(wants, registration.goes_by_broker)

    async def _preferred(self, topic: str) -> dict[int, int]:
        path = znodes.TOPIC.path(topic)
        data = await self._get(path)
        if data is None:
            return {}
        replicas = znodes.TOPIC.decode(path, data).partitions
        return {number: each[0] if each else -1 for number, each in replicas.items()}

    async def _addresses(self, broker: str) -> list[Address]:
        path = znodes.BROKER.path(broker)
        data = await self._get(path)
        if data is None:
            return []
        registration = znodes.BROKER.decode(path, data)
        return [Address(each.host, each.port) for each in registration.speaking(self._protocol)]

    # Being a member

    async def register(self) -> bool:
        """Join the group; False while another session is registered under our id."""
        path = znodes.CONSUMER_ID.path(self._group, self.consumer)
        data = znodes.CONSUMER_ID.encode(self._registration)
        try:
            await self._zk.create(path, data, ephemeral=True, make_parents=True)
        except NodeExists:
            return await self._is_ours(path)
        return True

    async def unregister(self) -> None:
        try:
            await self._zk.delete(znodes.CONSUMER_ID.path(self._group, self.consumer))
        except NoNode:
            pass  # already gone

    async def _is_ours(self, path: str) -> bool:
        """Whether a znode belongs to our session; if not, `on_change` is called on its deletion."""
        stat = await self._zk.exists(path, self._watch(path))
        return stat is not None and stat.ephemeral_owner == self._zk.session_id

    # Owning

    def _owner_path(self, partition: TopicPartition) -> str:
        return znodes.CONSUMER_OWNER.path(self._group, *partition)

    def _offset_path(self, partition: TopicPartition) -> str:
        return znodes.CONSUMER_OFFSET.path(self._group, *partition)

    async def claim(self, ownership: Ownership) -> bool:
        """Take ownership of a partition; False while another session owns it."""
        path = self._owner_path(ownership.partition)
        data = znodes.CONSUMER_OWNER.encode(ownership.owner)
        ownership.session_id = self._zk.session_id
        try:
            await self._zk.create(path, data, ephemeral=True, make_parents=True)
        except NodeExists:
            if not await self._is_ours(path):
                return False
            await self._zk.set(path, data)  # created by an earlier try whose answer was lost
        return True

    async def disown(self, partition: TopicPartition) -> None:
        """Give up the ownership of a partition, if we have it."""
        path = self._owner_path(partition)
        if await self._is_ours(path):
            await self._zk.delete(path)

    async def owner(self, partition: TopicPartition) -> str:
        """A partition's owner, for a log message."""
        data = await self._get(self._owner_path(partition))
        return data.decode(errors="replace") if data is not None else "nobody"

    async def load_offset(self, ownership: Ownership) -> int | None:
        """The group's committed offset in a partition; None if it has none."""
        path = self._offset_path(ownership.partition)
        try:
            znode = await self._zk.get(path)
        except NoNode:
            return None
        ownership.committed = znodes.CONSUMER_OFFSET.decode(path, znode.data)
        ownership.version = znode.stat.version
        ownership.is_in_doubt = False
        return ownership.committed

    async def begin_at(self, ownership: Ownership, offset: int) -> None:
        """Commit the offset that a group starts at, so that no later owner starts further on."""
        topic_path = znodes.CONSUMER_OFFSETS.path(self._group, ownership.partition.topic)
        try:
            await self._zk.create(topic_path, make_parents=True)
        except NodeExists:
            pass  # another partition of the topic has created it
        ownership.start = offset
        await self.save(ownership)

    async def save(
        self, ownership: Ownership, *, release: bool = False, commit: bool = True
    ) -> None:
        """Commit a position if it has moved, and with `release` give up the ownership.

        `Lost` if it was no longer ours: then nothing was written. After `ConnectionLoss`, retry.
        """
        async with ownership.lock:
            if ownership.session_id != self._zk.session_id:
                raise Lost(f"{ownership.partition}: it was claimed in a session that has ended")
            position = ownership.position if commit else None
            path = self._owner_path(ownership.partition)
            # The delete would hit another owner's znode as well as ours, and an earlier release may
            # have succeeded without our knowing. While it is ours, nobody else can create it.
            if release and not await self._is_ours(path):
                raise Lost(f"{ownership.partition}: it is no longer ours")
            operations: list[Operation] = [Check(path)]
            if position is not None and position != ownership.committed:
                operations.append(await self._to_commit(ownership, position))
            if release:
                operations.append(Delete(path))
            if len(operations) > 1:
                await self._write(ownership, operations, position)

    async def _to_commit(self, ownership: Ownership, position: int) -> Operation:
        if ownership.is_in_doubt:
            await self.load_offset(ownership)
        path = self._offset_path(ownership.partition)
        data = znodes.CONSUMER_OFFSET.encode(position)
        return (
            Create(path, data) if ownership.version is None else Set(path, data, ownership.version)
        )

    async def _write(
        self, ownership: Ownership, operations: list[Operation], position: int | None
    ) -> None:
        try:
            outcomes = await self._zk.multi(operations)
        except (ConnectionLoss, asyncio.CancelledError):
            ownership.is_in_doubt = True  # it may have been carried out
            raise
        except MultiFailed as failed:
            raise Lost(f"{ownership.partition}: {failed}") from None
        for operation, outcome in zip(operations, outcomes, strict=True):
            if isinstance(operation, Create | Set):
                ownership.committed = position
                ownership.version = outcome.version if isinstance(outcome, Stat) else 0
