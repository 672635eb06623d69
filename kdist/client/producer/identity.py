"""The producer id and epoch: requested when first needed, and renewed after a sequence gap."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple

from kdist.client.cluster import Cluster, raise_for
from kdist.errors import ApiError, Error
from kdist.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kdist.protocol import init_producer_id
from kdist.protocol.init_producer_id import InitProducerIdRequest

_BUMP_VERSION_MIN = 3  # first to bump the epoch (KIP-360); before it, a new id serves as well
_NO_TRANSACTION_MS = 2**31 - 1


class Identity(NamedTuple):
    """The producer id and epoch by which brokers know a producer."""

    id: int
    epoch: int


NOBODY = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Identities:
    """Owner: the loop. `fatal` is the error because of which no id will be requested any more."""

    def __init__(self, cluster: Cluster, on_change: Callable[[], None]) -> None:
        self.fatal: ApiError | None = None
        self._cluster = cluster
        self._on_change = on_change
        self._current = NOBODY
        self._bumped = NOBODY  # whose epoch to bump; with NOBODY, a new id is requested
        self._asking: asyncio.Task[None] | None = None

    @property
    def current(self) -> Identity:
        """The newest; `NOBODY` before the first."""
        return self._current

    def newer_than(self, known: Identity) -> Identity | None:
        """An identity other than `known`; None while one is requested, until `on_change`."""
        if self._current != known:
            return self._current
        if self._asking is None and self.fatal is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        try:
            self._current = self._bumped = await self._cluster.retried(self._ask_brokers, math.inf)
        except ApiError as error:
            self.fatal = error
        finally:
            self._asking = None
        self._on_change()

    async def _ask_brokers(self) -> Identity:
        failure = ApiError(Error.NETWORK_EXCEPTION, "no broker is known to ask for a producer id")
        for broker in self._cluster.in_turn():
            try:
                return await self._ask_broker(broker)
            except ApiError as error:
                failure = error
        raise failure

    async def _ask_broker(self, broker: int) -> Identity:
        client = await self._cluster.client(broker)
        bumped = self._bumped
        if client.version_of(init_producer_id.API) < _BUMP_VERSION_MIN:
            bumped = NOBODY
        answer = await client.send(
            InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=_NO_TRANSACTION_MS,
                producer_id=bumped.id,
                producer_epoch=bumped.epoch,
            )
        )
        if answer.error_code and bumped != NOBODY:
            self._bumped = NOBODY
            return await self._ask_broker(broker)
        raise_for(answer.error_code, "producer id")
        return Identity(answer.producer_id, answer.producer_epoch)
