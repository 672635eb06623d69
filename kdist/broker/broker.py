"""A broker's life cycle: start, run until stopped or failed, stop.

    start: HTTP, ZooKeeper session, cluster id, settings, log directory, logs, listeners,
           registration, election; ready once a controller has sent it the cluster's metadata
    stop:  leaders moved where they can be, listeners, candidacy, registration, requests in flight,
           directory, session

Start waits for ZooKeeper without end: after a power cut its servers may come back later than the
brokers, and a broker that gave up would stay down until somebody starts it. Start raises
`UserError`, and undoes what it has begun, if the log directory belongs to another cluster or
broker, if a port or the broker id is taken, if ZooKeeper refuses, or if no name of its servers
exists. A later failure, a `DiskFailed` or a bug, is set on `failure`.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from kdist.broker.authorization import Authorizer
from kdist.broker.context import BrokerContext
from kdist.broker.controller_access import move_leaders
from kdist.broker.disconnects import Disconnects
from kdist.broker.gateway import Gateway
from kdist.broker.http import Page
from kdist.broker.listener_doors import Doors
from kdist.broker.measures import Measures
from kdist.broker.membership import Membership, find_cluster_id, make_starting_paths
from kdist.broker.quotas import Quotas, StoredQuotas
from kdist.broker.service import Followed, Service
from kdist.broker.session_file import SessionFile
from kdist.broker.settings.dynamic import DynamicSettings, TopicOverrides
from kdist.broker.settings.stored import Follower, SettingsChanges
from kdist.broker.stored_quotas import CLIENTS, USERS
from kdist.broker.stored_security import StoredAcls
from kdist.broker.stored_users import StoredUsers
from kdist.config.broker_config import BrokerConfig
from kdist.config.topic import TopicSettings
from kdist.errors import DiskFailed, UserError
from kdist.metrics.exposition import CONTENT_TYPE
from kdist.model import OFFSETS_TOPIC
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest
from kdist.storage.directory import LogDirectory
from kdist.zk import znodes
from kdist.zk.client import SessionState
from kdist.zk.errors import (
    ConnectionLoss,
    CorruptZnode,
    Misconfigured,
    SessionExpired,
    ZooKeeperError,
)
from kdist.zk.registration import BrokerRegistration

logger = logging.getLogger(__name__)
T = TypeVar("T")

DRAIN_MS = 5_000  # for requests in flight when a broker stops

_AT_ONCE_MS = 1
_RETRY_MS = 500  # between attempts at ZooKeeper while starting
_STRAYS_MS = (
    30_000  # by then the controller has had deleted topics' logs removed; the rest is stray
)
_STATUS_NS = 1_000_000_000  # between two progress lines while logs are opened


class State(enum.Enum):
    """Where a broker is in its life."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Broker:
    """Owner: the loop. Call `start` and `stop` once each; `failure` is set when it has to end."""

    def __init__(self, context: BrokerContext) -> None:
        config = context.config
        self.context = context
        self.id: int = config.broker.id
        self.state = State.NEW
        self.failure: asyncio.Future[BaseException] = context.network.loop.create_future()
        self.measures = Measures()
        self.measures.broker.has_session = lambda: context.zk.state is SessionState.CONNECTED
        self._settings = config.digest()
        digests = (context.release, self._settings, context.unit)
        self.measures.build[(context.version, *digests)].info = 1
        self.http_port: int | None = None
        self._process = context.process
        self._process.on_failure = self.fail
        self._service: Service | None = None
        self._dynamic = DynamicSettings(context.zk, config, self._configure)
        self._overrides = TopicOverrides(context.zk, self._dynamic, self._configure_topic)
        self._quotas = StoredQuotas(
            context.zk,
            Quotas(
                context.process.clock,
                config.network.quota_window_size_seconds,
                self.measures.quotas,
                self._end_pauses,
                config.network.controller_quota_window_num
                * config.network.controller_quota_window_size_seconds,
            ),
        )
        self._users = StoredUsers(context.zk, context.process.secrets)
        self.authorizer = Authorizer(
            config.authorization, context.process.clock, self.measures.authorization
        )
        followers: dict[str, Sequence[Follower]] = {
            "topics": [self._overrides],
            CLIENTS: [self._quotas.follower(CLIENTS)],
            USERS: [self._users, self._quotas.follower(USERS)],
        }
        self._changes = SettingsChanges(context.zk, context.process.clock, followers)
        self._acls = self._make_acls()
        self._doors = Doors(context, self._users, self.measures)
        self._gateway = Gateway(context, self.measures.network)
        self._disconnects = Disconnects(context.zk, context.process.clock, self._gateway.disconnect)
        self._epoch = -1
        self._vetted: str | None = None  # the content id by which replicas were judged last
        self._membership = Membership(
            context.zk,
            self.id,
            config.zookeeper.session_timeout_ms,
            self.measures.broker,
            self._know_epoch,
            SessionFile(context.files, config.broker.directory, self.id, context.boot_id),
            context.process.blocking,
        )

    def _make_acls(self) -> StoredAcls | None:
        """None if everybody may do everything."""
        if not self.authorizer.is_on:
            return None
        acls = StoredAcls(self.context.zk, self._process.clock, self.authorizer.table)
        acls.on_change.append(self.authorizer.changed)
        self.measures.watch_acls(acls)
        return acls

    @property
    def service(self) -> Service:
        """What serves requests; it exists from the middle of `start` on."""
        assert self._service is not None, "the broker is not started"
        return self._service

    @property
    def port(self) -> int:
        return self._gateway.endpoints[0].listener.port

    def fail(self, error: BaseException) -> None:
        """End the broker for this reason, unless it is ending for an earlier one."""
        if not self.failure.done():
            self.failure.set_result(error)

    # Starting

    async def start(self) -> None:
        """Start to serve. Raises `UserError` if it cannot, after undoing what was begun.

        It returns without becoming ready if something has failed after registration: see `failure`.
        """
        await self._process.run(self._start())

    async def _start(self) -> None:
        self.state = State.STARTING
        try:
            await self._join()
        except BaseException:
            await self._undo()
            raise
        if self.failure.done():  # whoever awaits `failure` ends the broker
            return
        self.state = State.READY
        self.measures.broker.is_ready = 1
        self._tell(f"ready: broker {self.id} on port {self.port}")

    async def _join(self) -> None:
        context = self.context
        # First: a wait for ZooKeeper or a recovery may take long, and must be observable.
        self.http_port = await self._gateway.open_http(
            {"/metrics": self._metrics_page, "/health": self._health_page}
        )
        cluster_id, offsets_partitions = await self._look_at_zookeeper()
        self._tell("opening the log directory")
        self._service = service = Service(
            context,
            self.measures,
            Followed(self._overrides, self._quotas, self._users, self._acls),
            self.authorizer,
            cluster_id,
            self._doors,
            self.fail,
        )
        await self._open_logs(service.directory)
        service.wire(offsets_partitions)
        await self._gateway.open(service.handler, self._doors.tls)
        self._doors.begin()
        self._tell("registering")
        await self._join_cluster(service)

    async def _open_logs(self, directory: LogDirectory) -> None:
        """Open logs in steps: a recovery takes long, and must not hold up signals or watchdog."""
        now_ns = self._process.clock.monotonic_ns
        told_ns = now_ns()
        with closing(directory.opening(self._vetted)) as steps:
            for work in steps:
                if now_ns() - told_ns >= _STATUS_NS:
                    told_ns = now_ns()
                    doing = "opening" if directory.is_clean else "recovering"
                    self._tell(f"{doing} {len(directory.logs)} of {directory.found} logs")
                if work is None:
                    await asyncio.sleep(0)
                else:
                    await self._process.blocking(work)

    async def _look_at_zookeeper(self) -> tuple[str, int]:
        """The cluster id, and how many partitions `__consumer_offsets` has or will have."""
        where = self.context.config.zookeeper.connect
        self._tell(f"connecting to ZooKeeper on {where}")
        try:
            return await self._patiently(self._look)
        except ZooKeeperError as error:
            raise UserError(f"ZooKeeper on {where}: {error}") from error

    async def _look(self) -> tuple[str, int]:
        zk = self.context.zk
        await make_starting_paths(zk)
        cluster_id = await find_cluster_id(zk, self._process.rng)
        await self._dynamic.load()
        await self._changes.load_all()
        await self._disconnects.load_all()
        if self._acls is not None:
            await self._acls.load_all()
        try:
            vetted = await znodes.VETTED_DISK.read(zk, self.id)
        except CorruptZnode as error:
            logger.warning("%s", error)
        else:
            self._vetted = None if vetted is None else vetted.content
        return cluster_id, await self._count_offsets_partitions()

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which is repeated for as long as ZooKeeper is away."""
        zk = self.context.zk
        while True:
            try:
                if zk.state is SessionState.CLOSED:
                    await zk.connect()
                elif zk.state is SessionState.EXPIRED:
                    await zk.reconnect()
                return await work()
            except (ConnectionLoss, SessionExpired) as error:
                if isinstance(error, Misconfigured) and zk.state is SessionState.CLOSED:
                    raise  # after a session it is the resolver that fails, and not the address
                logger.warning("waiting for ZooKeeper: %s", error)
                self.context.status(f"waiting for ZooKeeper: {error}")
                await asyncio.sleep(_RETRY_MS / 1000)

    async def _count_offsets_partitions(self) -> int:
        topic = await znodes.TOPIC.read(self.context.zk, OFFSETS_TOPIC)
        if topic is None:
            return self.context.config.groups.offsets_topic_num_partitions
        return len(topic.partitions)

    async def _join_cluster(self, service: Service) -> None:
        """Register, stand for election, and wait for the cluster's metadata."""
        config = self.context.config
        registration = BrokerRegistration(
            endpoints=self._gateway.endpoints,
            timestamp_ms=self._process.clock.now_ms(),
            rack=config.broker.rack,
            host=config.broker.host or self.context.host,
            disk=service.directory.meta.directory_id,
            content=service.directory.content_id,
            flushed=service.directory.flushed,
        )
        try:
            cluster_id = service.directory.meta.cluster_id
            register = partial(self._membership.register, registration, cluster_id)
            await self._patiently(register)
            self._dynamic.watch()
            self._changes.watch()
            self._disconnects.watch()
            if self._acls is not None:
                self._acls.watch()
        except ZooKeeperError as error:
            raise UserError(f"ZooKeeper on {config.zookeeper.connect}: {error}") from error
        service.coordinator.start()
        service.schedule.start()
        service.cleaner.start()
        start = self._process.start
        start(self._membership.keep(), f"broker {self.id} membership")
        service.controller.on_loss.append(partial(service.cache.forget_controller, self.id))
        start(service.controller.run(), f"broker {self.id} candidate")
        start(self.measures.watch_lag(), f"broker {self.id} lag")
        await self._await_metadata(service.cache.loaded)
        self._process.call_later(_STRAYS_MS, service.replicas.warn_of_strays)

    async def _await_metadata(self, loaded: asyncio.Event) -> None:
        """Return once a controller has sent metadata, without which no client can be served, or
        once something has failed."""
        timeout_s = self.context.config.zookeeper.session_timeout_ms / 1000
        loading = asyncio.ensure_future(loaded.wait())
        try:
            while not (loading.done() or self.failure.done()):
                await asyncio.wait(
                    (loading, self.failure),
                    timeout=timeout_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not loaded.is_set():
                    self._tell("waiting for a controller to tell of the cluster")
        finally:
            loading.cancel()

    def _know_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self.service.replicas.know_epoch(epoch)
        self.service.registered.set()

    def _configure(self, config: BrokerConfig) -> None:
        self._gateway.configure(config.network)
        if self._service is not None:
            self._service.replicas.throttles.configure(config.replication)
            self._service.cleaner.configure(config.storage)
            self._service.replicas.configure_all(self._overrides.settings_of)
            self._service.controller.note_settings_change()

    def _configure_topic(self, topic: str, settings: TopicSettings) -> None:
        if self._service is not None:
            self._service.replicas.configure(topic, settings)
            self._service.controller.note_settings_change(topic)

    def _end_pauses(self) -> None:
        if self._service is not None:
            self._service.end_pauses()

    def _tell(self, sentence: str) -> None:
        logger.info("%s", sentence)
        self.context.status(sentence)

    # Stopping

    async def stop(self, drain_ms: float = DRAIN_MS) -> None:
        """Answer requests in flight, deregister, and leave a directory that needs no recovery.

        Returns early if something fails meanwhile: see `failure`.
        """
        await self._process.run(self._stop_unless_failed(drain_ms))

    async def _stop_unless_failed(self, drain_ms: float) -> None:
        stopping = asyncio.ensure_future(self._stop(drain_ms))
        try:
            await asyncio.wait((stopping, self.failure), return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                stopping.result()
        except DiskFailed as error:
            self.fail(error)
        finally:
            stopping.cancel()

    async def _stop(self, drain_ms: float) -> None:
        self.state = State.STOPPING
        self.measures.broker.is_ready = 0
        self._tell("stopping")
        service = self.service
        service.cleaner.stop()
        await move_leaders(
            service.access,
            self.context.config.broker,
            ControlledShutdownRequest(broker_id=self.id, broker_epoch=self._epoch),
            partial(service.cache.has_shared_replica, self.id),
        )
        closing = asyncio.ensure_future(self._gateway.close(drain_ms))
        await asyncio.sleep(0)  # from here on no connection is accepted
        try:
            async with asyncio.timeout(drain_ms / 1000):
                await self._leave(service)
        except TimeoutError:
            logger.warning("ZooKeeper does not answer; the session will expire instead")
        await self._cancel_running()
        await service.drain()
        await closing
        service.cancel()
        service.schedule.stop()
        await self._process.idle()
        self._process.close()
        if self.failure.done():
            return
        service.directory.close(self._epoch)
        await self.context.zk.close()
        self.state = State.STOPPED
        self._tell("stopped")

    async def _leave(self, service: Service) -> None:
        """Resign as controller and deregister, so that the cluster goes on without this broker."""
        try:
            await service.controller.resign()
        except ZooKeeperError as error:
            logger.warning("could not resign; the session will expire instead: %s", error)
        await self._membership.leave()

    async def _cancel_running(self) -> None:
        self._dynamic.stop()
        self._changes.stop()
        self._doors.end()
        self._disconnects.stop()
        if self._acls is not None:
            self._acls.stop()
        await self._process.cancel_started()

    async def abandon(self) -> None:
        """End after a failure: leave the disk untouched, close the ZooKeeper session at once."""
        await self._process.run(self._abandon())

    async def _abandon(self) -> None:
        self.state = State.STOPPED
        self.measures.broker.is_ready = 0
        self._process.close()
        await self._cancel_running()
        if self._service is not None:
            self._service.cleaner.stop()
            self._service.schedule.stop()
            self._service.cancel()
        await self._gateway.close(_AT_ONCE_MS)
        await self.context.zk.close()

    async def _undo(self) -> None:
        """Release the lock, the addresses and the session after a failed start.

        After a disk failure or a bug, the directory is left untouched.
        """
        await self._cancel_running()
        await self._gateway.close(_AT_ONCE_MS)
        if self._service is not None:
            self._service.cancel()
            self._service.cleaner.stop()
            self._service.schedule.stop()
            await self._process.idle()
            self._process.close()
            if not self.failure.done():
                self._service.directory.close(self._epoch)
        await self.context.zk.close()
        self.state = State.STOPPED

    # Pages

    def _metrics_page(self) -> Page:
        if self.state is State.READY:
            self.service.collector.maybe_collect()
        return Page(200, CONTENT_TYPE, self.measures.exposition.render())

    def _health_page(self) -> Page:
        """200 while the broker is ready and its session has not expired, else 503; with details."""
        zk_state, service = self.context.zk.state, self._service
        has_session = zk_state is not SessionState.EXPIRED
        is_well = self.state is State.READY and has_session and not self.failure.done()
        report = {
            "status": "ok" if is_well else "unavailable",
            "broker": self.id,
            "version": self.context.version,
            "release": self.context.release,
            "settings": self._settings,
            "unit": self.context.unit,
            "state": self.state.value,
            "zookeeper": zk_state.value,
            "controller": service is not None and service.controller.is_active,
            "partitions": 0 if service is None else len(service.replicas.partitions),
        }
        body = json.dumps(report).encode("ascii") + b"\n"
        return Page(200 if is_well else 503, "application/json", body)
