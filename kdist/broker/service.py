"""What serves requests: log directory, partitions, controller, groups, and the request handlers.

Built once the broker knows its cluster id; it then lives as long as the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from kdist.broker.authentication import GateShared
from kdist.broker.authorization import Authorizer
from kdist.broker.context import BrokerContext
from kdist.broker.controller_access import AutoCreation, ControllerAccess
from kdist.broker.crashes import Crashes
from kdist.broker.dispatch import Dispatch, Shared
from kdist.broker.fast_path import FastPath, FastPaths
from kdist.broker.fast_path.fetch import FetchFastPath
from kdist.broker.fast_path.produce import ProduceFastPath
from kdist.broker.fetch_sessions import FetchSessions
from kdist.broker.handlers.acls import AclsHandler
from kdist.broker.handlers.client_quotas import ClientQuotasHandler
from kdist.broker.handlers.commands import CommandsHandler
from kdist.broker.handlers.configs import ConfigsHandler, Loggers
from kdist.broker.handlers.control import Admission, ControlHandler
from kdist.broker.handlers.fetch import FetchHandler
from kdist.broker.handlers.init_producer_id import ProducerIds
from kdist.broker.handlers.metadata import MetadataHandler
from kdist.broker.handlers.produce import ProduceHandler
from kdist.broker.handlers.scram_users import ScramUsersHandler
from kdist.broker.listener_doors import Doors
from kdist.broker.measures import (
    Collector,
    LaggingGroups,
    Measures,
    RollLockWatch,
    collect_retention,
)
from kdist.broker.metadata_cache import NO_CONTROLLER, MetadataCache
from kdist.broker.offsets_log import OffsetsLoader, PartitionedOffsetsLog
from kdist.broker.quotas import StoredQuotas, Throttles
from kdist.broker.redirection import LeaderHints, NearestReplica
from kdist.broker.routes import Handlers, routes_to
from kdist.broker.settings.dynamic import TopicOverrides
from kdist.broker.settings.resources import Resources
from kdist.broker.settings.stored import Owner, StoredSettings
from kdist.broker.stored_quotas import entity_of
from kdist.broker.stored_security import StoredAcls
from kdist.broker.stored_users import StoredUsers
from kdist.config.broker_config import BrokerConfig
from kdist.config.replication import RACK_AWARE
from kdist.controller.controller import Controller
from kdist.controller.term import ControllerDependencies
from kdist.controller.topics import Planned
from kdist.errors import UserError
from kdist.groups.context import GroupsContext
from kdist.groups.coordinator import GroupCoordinator
from kdist.model import OFFSETS_TOPIC, TopicPartition
from kdist.network.client import Client, ClientSettings
from kdist.network.connection import Handler
from kdist.network.network import FETCHER_PATIENCE
from kdist.protocol import fetch, produce
from kdist.replication.alter_partition_manager import AlterPartitionManager
from kdist.replication.peers import Peers
from kdist.replication.replicas import Replicas
from kdist.runtime.diagnostics import LogLevels
from kdist.storage.background import DirectoryContext
from kdist.storage.cleaning.cleaner import (
    ChildWorker,
    Cleaner,
    CleanerHooks,
    CleaningWorker,
    ThreadWorker,
)
from kdist.storage.directory import LogDirectory, Schedule
from kdist.storage.meta import Identity
from kdist.zk import znodes


class Followed(NamedTuple):
    """What the broker follows in ZooKeeper; `acls` is None if everybody may do everything."""

    overrides: TopicOverrides
    quotas: StoredQuotas
    users: StoredUsers
    acls: StoredAcls | None


class Service:
    """Owner: the broker. `fail` is called with a disk failure or a bug."""

    def __init__(
        self,
        context: BrokerContext,
        measures: Measures,
        followed: Followed,
        authorizer: Authorizer,
        cluster_id: str,
        doors: Doors,
        fail: Callable[[BaseException], None],
    ) -> None:
        """Locks the log directory; the caller opens its logs next. Raises `UserError`."""
        self._context = context
        self._process = context.process
        self._measures = measures
        self._overrides, self._quotas, self._users, self._acls = followed
        self._authorizer = authorizer
        self._dynamic = self._overrides.broker
        self._fail = fail
        self._cluster_id = cluster_id
        self._doors = doors
        self._listener = listener = context.config.inter_broker_listener
        self._security = doors.security_of_brokers()
        self._id = context.config.broker.id
        self.cache = MetadataCache()
        self.registered = asyncio.Event()  # set once the broker's epoch is known
        self._admission = Admission.of(context.config, self.registered)
        self.directory = self._open_directory()
        measures.watch(self.directory)
        self._tick = context.network.tick
        self.replicas = Replicas(
            self.directory,
            self._id,
            self._tick.schedule,
            measures.replication,
            self.cache.has,
            self.directory.saved_high_watermarks,
            self._make_peers(),
        )
        self.directory.high_watermarks = self.replicas.high_watermarks
        self.schedule = Schedule(self.directory, self.replicas.committed_end)
        self.cleaner = self._make_cleaner()
        self.controller = self._make_controller()
        self.access = ControllerAccess(self.controller, self.cache, listener, self._connect)
        self.creation = AutoCreation(
            self.cache, lambda: self._dynamic.config, self.access, measures.broker
        )
        self._alive: set[int] = set()  # the brokers for which ISRs were last reviewed
        self._controller_id = NO_CONTROLLER  # that proposals of ISRs are sent to
        self._tick_hooks: tuple[Callable[[], None], ...] = ()
        self._dispatches: list[Dispatch] = []

    def _open_directory(self) -> LogDirectory:
        files, config = self._context.files, self._context.config
        context = DirectoryContext(
            files=files,
            clock=self._process.clock,
            tasks=self._process,
            rng=self._process.rng,
            settings=config.storage,
            metrics=self._measures.storage,
            settings_of=self._overrides.settings_of,
            on_failure=self._fail,
            boot_id=self._context.boot_id,
        )
        path = config.broker.directory
        try:
            return LogDirectory(path, Identity(self._id, self._cluster_id), context)
        except OSError as error:  # not a disk failure: those raise `DiskFailed`
            raise UserError(f"{path} cannot be used: {error.strerror or error}") from error

    def _make_cleaner(self) -> Cleaner:
        context, process = self._context, self._process
        worker: CleaningWorker
        if context.cleaner_argv:
            worker = ChildWorker(process, context.cleaner_argv)
        else:
            worker = ThreadWorker(context.files, process.clock, process)
        hooks = CleanerHooks(self.replicas.committed_end, self.cache.is_fully_in_sync)
        cleaner = Cleaner(self.directory, worker, hooks, self._measures.cleaner)
        cleaner.configure(self._dynamic.config.storage)
        return cleaner

    def _make_peers(self) -> Peers:
        cache = self.cache
        self._isrs = AlterPartitionManager(
            self._id,
            lambda: self.replicas.broker_epoch,
            lambda request: self.access.alter_partition(request),
        )
        return Peers(
            settings=self._dynamic.config.replication,
            find=lambda broker_id: cache.broker(broker_id, self._listener),
            is_alive=lambda broker_id: broker_id in cache.brokers,
            broker_epoch=lambda: self.replicas.broker_epoch,
            connect=self._connect_to_leader,
            propose=self._isrs.propose,
        )

    async def _connect_to_leader(self, host: str, port: int) -> Client:
        timeout_ms = self._context.config.replication.socket_timeout_ms
        settings = ClientSettings(
            *(f"broker-{self._id}-fetcher", self._context.version),
            *(timeout_ms, min(timeout_ms, 10_000)),
            patience=FETCHER_PATIENCE,
            security=self._security,
        )
        return await Client.connect(self._context.network, host, port, settings)

    def _make_controller(self) -> Controller:
        context = self._context
        return Controller(
            ControllerDependencies(
                zk=context.zk,
                clock=self._process.clock,
                broker_id=self._id,
                config=lambda: self._dynamic.config,
                connect=self._connect,
                listener=self._listener,
                rng=self._process.rng,
                metrics=self._measures.controller,
                on_planned=self._expect,
                load_settings=self._overrides.load_new,
                settings_of=self._overrides.settings_of,
            )
        )

    def _expect(self, planned: Planned) -> None:
        self._overrides.expect(planned.topic.name, planned.topic.id, planned.configs)

    async def _connect(self, host: str, port: int) -> Client:
        """A connection to another broker, or to this one."""
        timeout_ms = self._context.config.broker.controller_socket_timeout_ms
        settings = ClientSettings(
            *(f"broker-{self._id}", self._context.version, timeout_ms, min(timeout_ms, 10_000)),
            security=self._security,
        )
        return await Client.connect(self._context.network, host, port, settings)

    # Requests

    def wire(self, offsets_partitions: int) -> None:
        """Make the handlers.

        `offsets_partitions`: how many partitions `__consumer_offsets` has, or will be created with.
        """
        context, replicas = self._context, self.replicas
        commit_timeout_ms = context.config.groups.offsets_commit_timeout_ms
        log = PartitionedOffsetsLog(replicas, self._process.clock, lambda: commit_timeout_ms)
        self.coordinator = GroupCoordinator(
            GroupsContext(
                settings=context.config.groups,
                partitions=offsets_partitions,
                clock=self._process.clock,
                tasks=self._process,
                rng=self._process.rng,
                log=log,
                metrics=self._measures.groups,
                is_known=self.cache.has,
            )
        )
        self.collector = self._make_collector()
        loader = OffsetsLoader(self.coordinator, self._process, self._fail)
        replicas.watch_isrs()
        replicas.on_leader.append(loader.begin)
        replicas.on_resign.append(loader.end)
        handlers = self._make_handlers()
        self._routes = routes_to(handlers)
        requests = self._measures.requests
        clock, crashes = self._process.clock, Crashes(requests, self._fail)
        produces = ProduceFastPath(
            handlers.produce, clock, requests[(produce.API.name,)], self._fail
        )
        fetches = FetchFastPath(
            handlers.fetch, requests[(fetch.API.name,)], produces.flush, crashes
        )
        paths: dict[int, FastPath] = {produce.API.key: produces, fetch.API.key: fetches}
        self._shared = Shared(
            clock=clock,
            requests=requests,
            waiting=replicas.delayed,
            fast_paths=FastPaths(paths, produces),
            crashes=crashes,
            throttles=Throttles(self._quotas.quotas, lambda id_: id_ in self.cache.brokers),
            authorizer=self._authorizer,
        )
        self._authorizer.topic_of = self.cache.name_of
        self._authorizer.on_change.append(self._shared.fast_paths.forget)
        self._tick_hooks = (produces.end_tick, fetches.end_tick)
        for hook in self._tick_hooks:
            self._tick.at_end(hook)

    def _make_collector(self) -> Collector:
        clock, measures = self._process.clock, self._measures
        groups = LaggingGroups(
            *(clock, self.coordinator, self.replicas, self.cache),
            *(lambda broker_id: self.cache.broker(broker_id, self._listener), self._connect),
            measures,
        )
        lock = RollLockWatch(
            self._context.zk, clock, lambda: self.controller.is_active, measures.controller
        )
        retention = partial(collect_retention, self.replicas, measures.retention)
        return Collector(self._process, groups.collect, lock.collect, retention)

    def _make_handlers(self) -> Handlers:
        context, replicas, clock = self._context, self.replicas, self._process.clock
        network = context.config.network
        producer_ids = ProducerIds(context.zk, self._id)

        def config() -> BrokerConfig:
            return self._dynamic.config

        sessions = FetchSessions(
            network.fetch_session_slots,
            clock,
            self._process.rng,
            self._measures.replication,
            self.cache.name_of,
        )
        hints = LeaderHints(replicas, self.cache)
        is_rack_aware = context.config.replication.selector_class == RACK_AWARE
        nearest = NearestReplica(self.cache, self._id) if is_rack_aware else None
        stored = StoredSettings(context.zk, self._reload_settings)
        resources = Resources(self.cache, self._dynamic)
        loggers = Loggers(self._id, LogLevels())
        return Handlers(
            replicas=replicas,
            produce=ProduceHandler(replicas, hints, clock),
            fetch=FetchHandler(replicas, sessions, hints, network.fetch_max_bytes, nearest),
            metadata=MetadataHandler(self.cache, self.creation, self._cluster_id),
            groups=self.coordinator,
            commands=CommandsHandler(self.controller, self.cache, config),
            producer_ids=producer_ids,
            control=ControlHandler(
                replicas,
                self.cache,
                self._overrides,
                self.controller,
                producer_ids,
                self._admission,
                self._on_metadata_update,
            ),
            configs=ConfigsHandler(stored, resources, loggers, self.cache.loaded),
            client_quotas=ClientQuotasHandler(context.zk, stored),
            acls=AclsHandler(self._acls),
            scram_users=ScramUsersHandler(
                *(context.zk, stored, lambda: self.controller.is_active, self._may_carry_secrets)
            ),
        )

    async def _reload_settings(self, owner: Owner) -> None:
        """Re-read the owner's settings from ZooKeeper and apply them."""
        if owner.row is znodes.TOPIC_SETTINGS:
            await self._overrides.reload(*owner.names)
        elif (entity := entity_of(owner.path)) is not None:
            await self._quotas.reload(entity)
            if owner.row is znodes.USER_SETTINGS:
                await self._users.reload_user(*owner.names)
        else:
            await self._dynamic.load()

    def _may_carry_secrets(self, listener: str) -> bool:
        config = self._context.config
        is_encrypted = config.listener(listener).tls is not None
        return is_encrypted or config.authentication.scram_alter_over_clear_enable

    def _on_metadata_update(self, gone: Collection[TopicPartition]) -> None:
        if (alive := self.cache.brokers.keys()) != self._alive:
            self._alive = set(alive)
            self.replicas.review_isrs()
        if self.cache.controller_id != self._controller_id:
            self._controller_id = self.cache.controller_id
            self._isrs.ask_anew()
        if gone:
            self.coordinator.forget_partitions(gone)
        topic = self.cache.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            self.coordinator.use_partitions(len(topic.partitions))

    def handler(self, listener: str) -> Handler:
        """The handler of a listener's connections."""
        dispatch = Dispatch(listener, self._routes, self._shared)
        self._dispatches.append(dispatch)
        measures, shared = self._measures, self._shared
        gates = GateShared(shared.clock, shared.crashes, measures.proofs)
        is_for_brokers = self._admission.lists(listener)
        return self._doors.before(listener, dispatch, gates, is_for_brokers=is_for_brokers)

    def end_pauses(self) -> None:
        """The quotas have changed: each client's next request is charged by the new ones."""
        if self._dispatches:
            self._shared.fast_paths.forget()
        for dispatch in self._dispatches:
            dispatch.end_pauses()

    # The end

    async def drain(self) -> None:
        """Stop leading partitions and coordinating groups; answer the requests that wait on it."""
        self.creation.cancel()
        self.coordinator.stop()
        self._isrs.cancel()
        idle = asyncio.get_running_loop().create_future()
        self.replicas.drain(lambda: idle.set_result(None))
        await idle

    def cancel(self) -> None:
        """Cancel requests that are not answered yet."""
        for dispatch in self._dispatches:
            dispatch.cancel()
        for hook in (*self._tick_hooks, self.replicas.delayed.attempt_changed):
            self._tick.remove(hook)
