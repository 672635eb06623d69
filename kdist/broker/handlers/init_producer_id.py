"""InitProducerId (key 22): ids for idempotent producers, unique in the cluster.

A broker reserves a block of ids in `/latest_producer_id_block` by a versioned write, and hands them
out one by one. The controller does so for a broker of Apache Kafka, which asks by
AllocateProducerIds. Ids left over when a broker stops are lost, which is harmless: there are 2^63.
A producer that asks again gets a new id. Source: KIP-98; Kafka's `ZkProducerIdManager`.

There are no transactions yet. A transactional id is answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
here and in FindCoordinator, the only error on which all clients stop and report. On others, such as
NOT_COORDINATOR or UNSUPPORTED_VERSION, the Java client or librdkafka retry until a timeout, or for
ever. It looks like a missing right: `NO_TRANSACTIONS` says otherwise, where answers have text.
"""

from __future__ import annotations

import asyncio
import logging

from kdist.errors import Error
from kdist.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kdist.protocol.allocate_producer_ids import AllocateProducerIdsResponse
from kdist.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import BadVersion, NodeExists, NoNode, ZooKeeperError
from kdist.zk.values import ProducerIdBlock

logger = logging.getLogger(__name__)

BLOCK_IDS = 1000
NO_TRANSACTIONS = "This release has no transactions: unset transactional.id. No right is missing."

_PATH = znodes.PRODUCER_ID_BLOCK.path()


class ProducerIds:
    """Owner: the broker."""

    def __init__(self, zk: ZooKeeper, broker_id: int) -> None:
        self._zk = zk
        self._broker_id = broker_id
        self._left = iter(range(0))
        self._taking = asyncio.Lock()

    async def answer(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """An id, with epoch 0; COORDINATOR_NOT_AVAILABLE while ZooKeeper is unavailable."""
        error = _fault(request)
        if error is Error.NONE:
            try:
                return InitProducerIdResponse(
                    error_code=Error.NONE, producer_id=await self._next(), producer_epoch=0
                )
            except ZooKeeperError as failure:
                logger.warning("no producer id: %s", failure)
                error = Error.COORDINATOR_NOT_AVAILABLE
        return InitProducerIdResponse(error_code=error, producer_epoch=NO_PRODUCER_EPOCH)

    async def allocate(self, broker_id: int) -> AllocateProducerIdsResponse:
        """A block for another broker; COORDINATOR_NOT_AVAILABLE while ZooKeeper is unavailable."""
        try:
            block = await self._take_block(broker_id)
        except ZooKeeperError as failure:
            logger.warning("no producer ids for broker %d: %s", broker_id, failure)
            return AllocateProducerIdsResponse(error_code=Error.COORDINATOR_NOT_AVAILABLE)
        return AllocateProducerIdsResponse(
            error_code=Error.NONE,
            producer_id_start=block.first,
            producer_id_len=block.last - block.first + 1,
        )

    async def _next(self) -> int:
        async with self._taking:
            following = next(self._left, None)
            if following is None:
                block = await self._take_block(self._broker_id)
                self._left = iter(range(block.first, block.last + 1))
                following = next(self._left)
            return following

    async def _take_block(self, broker_id: int) -> ProducerIdBlock:
        """Reserve the next block; if another broker is faster, the one after."""
        while True:
            try:
                data, stat = await self._zk.get(_PATH)
            except NoNode:
                data, stat = b"", None
            first = znodes.PRODUCER_ID_BLOCK.decode(_PATH, data).last + 1 if data else 0
            block = ProducerIdBlock(broker_id, first, first + BLOCK_IDS - 1)
            encoded = znodes.PRODUCER_ID_BLOCK.encode(block)
            try:
                if stat is None:
                    await self._zk.create(_PATH, encoded)
                else:
                    await self._zk.set(_PATH, encoded, stat.version)
            except (BadVersion, NodeExists):
                continue
            return block


def _fault(request: InitProducerIdRequest) -> Error:
    has_id = request.producer_id != NO_PRODUCER_ID
    has_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch or request.transactional_id == "":
        return Error.INVALID_REQUEST
    if request.transactional_id is not None:
        return Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return Error.NONE
