"""What a broker asks the controller for, by a call in-process or by a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kdist.broker.metadata_cache import MetadataCache
from kdist.config.broker import BrokerSettings
from kdist.config.broker_config import BrokerConfig
from kdist.controller.controller import Controller
from kdist.controller.topics import BROKER_DEFAULT, completed
from kdist.errors import ApiError, Error
from kdist.metrics.broker import BrokerMetrics
from kdist.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ZERO_UUID
from kdist.network.client import Client
from kdist.protocol import alter_partition, controlled_shutdown, create_topics
from kdist.protocol.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.security.acls import CLUSTER_NAME, Operation, ResourceType
from kdist.security.subjects import Subject

logger = logging.getLogger(__name__)

ConnectClient = Callable[[str, int], Awaitable[Client]]
Charge = Callable[[int], object]
"""Charges so many partitions to who has asked for them."""

_CREATION_MS = 30_000
_ROUND_TRIP_MS = 5_000  # in addition to the controller's own timeout


class ControllerAccess:
    """Owner: the broker. Methods raise ApiError if no controller is known, or none answers."""

    def __init__(
        self, controller: Controller, cache: MetadataCache, listener: str, connect: ConnectClient
    ) -> None:
        """`listener`: the inter-broker listener."""
        self._controller = controller
        self._cache = cache
        self._listener = listener
        self._connect = connect

    async def create(self, new: NewTopic, timeout_ms: int) -> Error:
        if self._controller.is_active:
            outcomes = await self._controller.create_topics([new], timeout_ms)
            return outcomes[0].error
        request = CreateTopicsRequest(topics=[new], timeout_ms=timeout_ms)
        answer = await self._ask(request, create_topics.API.newest, timeout_ms + _ROUND_TRIP_MS)
        return Error.of(answer.topics[0].error_code)

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if self._controller.is_active:
            return await self._controller.alter_partition(request)
        has_ids = all(topic.topic_id != ZERO_UUID for topic in request.topics)
        version = alter_partition.API.newest if has_ids else alter_partition.LAST_BY_NAME
        answer: AlterPartitionResponse = await self._ask(request, version)
        return answer

    async def shut_down(self, request: ControlledShutdownRequest) -> int:
        """Have this broker's leaders moved; returns how many it still leads that could move."""
        if self._controller.is_active:
            answer = await self._controller.controlled_shutdown(request)
        else:
            answer = await self._ask(request, controlled_shutdown.API.newest)
        if answer.error_code != Error.NONE:
            raise ApiError(Error.of(answer.error_code))
        return len(answer.remaining_partitions)

    async def _ask(self, request: Any, version: int, timeout_ms: float | None = None) -> Any:
        address = self._cache.broker(self._cache.controller_id, self._listener)
        if address is None:
            raise ApiError(Error.NOT_CONTROLLER, "no controller is known")
        client = await self._connect(address.host, address.port)
        try:
            return await client.send(request, version, timeout_ms)
        finally:
            client.close()


async def move_leaders(
    access: ControllerAccess,
    settings: BrokerSettings,
    request: ControlledShutdownRequest,
    has_replicated: Callable[[], bool],
) -> None:
    """Before a broker stops, have the controller move its leaders to other replicas.

    A broker stops all the same once its tries are over. One whose partitions have no other replica
    does not ask: nothing could move, so it stops without delay.
    """
    if not settings.controlled_shutdown_enable or not has_replicated():
        return
    for left in range(settings.controlled_shutdown_max_retries, 0, -1):
        try:
            async with asyncio.timeout(settings.controller_socket_timeout_ms / 1000):
                remaining = await access.shut_down(request)
        except (ApiError, TimeoutError) as error:
            why = str(error) or "no answer came in time"
            logger.warning("the controller did not move this broker's leaders: %s", why)
        else:
            if not remaining:
                return
            logger.warning("%d partitions have no other replica in sync", remaining)
        if left > 1:
            await asyncio.sleep(settings.controlled_shutdown_retry_backoff_ms / 1000)


class AutoCreation:
    """Topics that a client asks for, and `__consumer_offsets`, are created automatically.

    Any broker may be asked; the controller creates the topic. No request waits for that: clients
    get a retriable error, and try again. A creation in progress is not requested twice.
    Owner: the broker.
    """

    def __init__(
        self,
        cache: MetadataCache,
        config: Callable[[], BrokerConfig],
        access: ControllerAccess,
        metrics: BrokerMetrics,
    ) -> None:
        self._cache = cache
        self._config = config
        self._access = access
        self._metrics = metrics
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def ask_for(self, name: str, may_create: bool, charge: Charge) -> Error:
        """The error to answer for an unknown topic with a valid name, which may be created now.

        Then its partitions are charged to who asks, and given back if it is not created: who asks
        is never refused for them, as in Kafka, but pauses.
        """
        if name == TRANSACTIONS_TOPIC:
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        if not may_create or not self._config().broker.auto_create_topics_enable:
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        if self._cache.collides(name):  # asking again would not help
            return Error.INVALID_TOPIC_EXCEPTION
        self._begin(name, charge)
        return Error.LEADER_NOT_AVAILABLE

    def lacks_right(self, name: str, may_create: bool, subject: Subject) -> bool:
        """Whether an unknown topic would be created, were it not for its client's rights.

        The controller is asked in the broker's name, and so cannot tell.
        """
        return (
            may_create
            and self._config().broker.auto_create_topics_enable
            and not subject.could(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
            and not subject.may(Operation.CREATE, ResourceType.TOPIC, name)
        )

    def create_offsets_topic(self) -> None:
        """Create `__consumer_offsets`, whether or not `auto.create.topics.enable` is on."""
        self._begin(OFFSETS_TOPIC, lambda _partitions: None)

    def cancel(self) -> None:
        """Stop waiting for creations; the controller may still carry them out."""
        for task in self._under_way.values():
            task.cancel()

    def _begin(self, name: str, charge: Charge) -> None:
        if name not in self._under_way:
            config = self._config()
            partitions = config.broker.num_partitions
            charge(partitions)
            task = asyncio.ensure_future(
                self._carry_out(_topic(name, config), lambda: charge(-partitions))
            )
            self._under_way[name] = task

    async def _carry_out(self, new: NewTopic, give_back: Callable[[], object]) -> None:
        try:
            error = await self._access.create(new, _CREATION_MS)
        except ApiError as failure:
            error = failure.error
        finally:
            del self._under_way[new.name]
        if error not in (Error.NONE, Error.REQUEST_TIMED_OUT):
            give_back()
        if error is Error.NONE:
            self._metrics.created_topics += 1
        elif error is not Error.TOPIC_ALREADY_EXISTS:  # expected if two brokers request it
            logger.warning("topic %s is not created: %s", new.name, error.sentence)


def _topic(name: str, config: BrokerConfig) -> NewTopic:
    new = NewTopic(
        name=name,
        num_partitions=BROKER_DEFAULT,
        replication_factor=BROKER_DEFAULT,
        assignments=[],
        configs=[],
    )
    return completed(new, config)
