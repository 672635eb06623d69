"""Topics' own settings, from `/config/topics`: at start, for new topics, and as they change.

Who changes settings writes the topic's znode first and then a notification below
`/config/changes`. A notification only says where to look. With each that is new the oldest are
looked at too, and removed once they have had their time; who was away for longer than that comes
back with a new session, and looks at all its topics.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kdist.broker.dynamic_settings import DynamicSettings
from kdist.config.topic import TopicSettings
from kdist.config.usable import pick_usable
from kdist.runtime.clock import Clock
from kdist.runtime.tasks import raise_bug
from kdist.zk import znodes
from kdist.zk.client import Znode, ZooKeeper
from kdist.zk.errors import CorruptZnode, NoNode, ZooKeeperError
from kdist.zk.watching import ChildrenWatcher

logger = logging.getLogger(__name__)

Apply = Callable[[str, TopicSettings], None]

_READS_AT_ONCE = 200
_KEPT_MS = 15 * 60_000  # notifications, for brokers that are slow to look
_RETRY_MS = 5_000  # of what ZooKeeper refused; the connection's loss is told of by itself
_TOPICS = znodes.TOPIC_SETTINGS.parent.removeprefix("/config/")


class TopicOverrides:
    """Owner: the broker. What was read of a topic, or is written by this broker's controller with
    a new one, holds until a notification says otherwise."""

    def __init__(self, zk: ZooKeeper, clock: Clock, broker: DynamicSettings, apply: Apply) -> None:
        """`broker`: what topics have that have none of their own."""
        self._zk = zk
        self._clock = clock
        self.broker = broker
        self._apply = apply
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._ids: dict[str, uuid.UUID] = {}
        self._seen: set[str] = set()
        self._told_in = 0  # the session in which all was read that has changed before
        self._watcher: ChildrenWatcher | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    def settings_of(self, topic: str) -> TopicSettings:
        """A topic's settings; the broker's defaults instead of those that cannot be used."""
        overrides = self._overrides.get(topic)
        config = self.broker.config
        if not overrides:
            return config.topic_defaults
        usable = pick_usable(
            overrides, partial(config.topic, where=znodes.TOPIC_SETTINGS.path(topic))
        )
        for fault in usable.faults:
            logger.warning("left out of the topic's settings: %s", fault)
        return usable.made

    # Reading

    async def load_all(self) -> None:
        """Read the settings of all topics that have any. What changes from now on `watch` sees."""
        self._told_in = self._zk.session_id
        self._seen.update(await self._zk.children(znodes.SETTINGS_CHANGES.path()))
        names = await self._zk.children(znodes.TOPIC_SETTINGS.parent)
        topics = [znodes.TOPIC_SETTINGS.names(f"{znodes.TOPIC_SETTINGS.parent}/{n}") for n in names]
        await self._load_some([topic[0] for topic in topics if topic])

    async def load_new(self, topics: Mapping[str, uuid.UUID]) -> None:
        """Read those of topics that are not known by these ids."""
        await self._load_some([name for name in topics if self._is_new(name, topics[name])])
        self._ids.update(topics)

    def _is_new(self, topic: str, topic_id: uuid.UUID) -> bool:
        # What was read at start is that of the first id that the controller gives.
        return topic not in self._overrides or self._ids.get(topic, topic_id) != topic_id

    async def _load_some(self, topics: Sequence[str]) -> None:
        for start in range(0, len(topics), _READS_AT_ONCE):
            some = topics[start : start + _READS_AT_ONCE]
            self._overrides.update(zip(some, await self._read(some), strict=True))

    def expect(self, topic: str, topic_id: uuid.UUID, overrides: Mapping[str, str]) -> None:
        """This broker is about to write a new topic with these, which need not be read then.

        Not after it has: a change may be told of by then, and that would be lost. If somebody else
        writes a topic of the name meanwhile, that has another id, and is read.
        """
        self._overrides[topic] = overrides
        self._ids[topic] = topic_id

    def forget(self, topics: Iterable[str]) -> None:
        """These were deleted: one of the same name has settings of its own."""
        for topic in topics:
            self._overrides.pop(topic, None)
            self._ids.pop(topic, None)

    async def _read(self, topics: Sequence[str]) -> list[Mapping[str, str]]:
        paths = [znodes.TOPIC_SETTINGS.path(topic) for topic in topics]
        return list(map(_stored, paths, await self._zk.get_many(paths)))

    # Changes

    def watch(self) -> None:
        """Look at what has changed since `load_all`, and at what changes from now on."""
        self._watcher = ChildrenWatcher(self._zk, znodes.SETTINGS_CHANGES.path(), self._hear)

    def stop(self) -> None:
        """Look no more."""
        if self._watcher is not None:
            self._watcher.stop()
        if self._looking is not None:
            self._looking.cancel()
        if self._again is not None:
            self._again.cancel()

    def _hear(self, names: list[str] | None) -> None:
        told = names or []
        new = [name for name in told if name not in self._seen]
        self._seen = set(told)
        is_elsewhere = self._told_in != self._zk.session_id
        self._told_in = self._zk.session_id
        if new or is_elsewhere:
            oldest = told[: len(new) + 1]
            names = list(dict.fromkeys([*oldest, *new]))
            self._looking = asyncio.ensure_future(
                self._look_at(names, self._looking, list(self._overrides) if is_elsewhere else [])
            )
            self._looking.add_done_callback(raise_bug)

    async def _look_at(
        self, names: list[str], before: asyncio.Task[None] | None, topics: list[str]
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            await self.look_at(*topics)
        except ZooKeeperError as error:
            self._told_in = 0
            self._look_again(error)
        for name in names:
            try:
                await self._look_at_one(f"{znodes.SETTINGS_CHANGES.path()}/{name}")
            except CorruptZnode as error:
                logger.warning("a change of settings is not understood: %s", error)
            except ZooKeeperError as error:
                self._seen.discard(name)
                self._look_again(error)

    def _look_again(self, error: ZooKeeperError) -> None:
        """What could not be read counts as new when it is told of once more."""
        logger.warning("settings that may have changed are not read, again soon: %s", error)
        assert self._watcher is not None, "it told of them"
        loop = asyncio.get_running_loop()
        if self._again is not None:
            self._again.cancel()
        self._again = loop.call_later(_RETRY_MS / 1000, self._watcher.tell_again)

    async def look_at(self, *topics: str) -> None:
        """Go by what they have now. One that is not known, or not any more, is read once it is."""
        for start in range(0, len(topics), _READS_AT_ONCE):
            some = topics[start : start + _READS_AT_ONCE]
            for topic, overrides in zip(some, await self._read(some), strict=True):
                if self._overrides.get(topic, overrides) != overrides:
                    self._overrides[topic] = overrides
                    self._apply(topic, self.settings_of(topic))
                    logger.info("topic %s has settings of its own now: %s", topic, overrides)

    async def _look_at_one(self, path: str) -> None:
        try:
            data, stat = await self._zk.get(path)
        except NoNode:
            return  # it had its time
        kind, _, name = znodes.SETTINGS_CHANGE.decode(path, data).entity_path.partition("/")
        if kind == _TOPICS and name:
            await self.look_at(name)
        if self._clock.now_ms() - stat.created_ms > _KEPT_MS:
            await self._remove(path)

    async def _remove(self, path: str) -> None:
        try:
            await self._zk.delete(path)
        except NoNode:
            pass  # another broker did


def _stored(path: str, znode: Znode | None) -> Mapping[str, str]:
    """A topic's own settings; without a znode it has none."""
    if znode is not None:
        try:
            return znodes.TOPIC_SETTINGS.decode(path, znode.data).settings
        except CorruptZnode as error:
            logger.warning("the topic goes by the broker's defaults: %s", error)
    return {}
