"""AllocateProducerIds (key 67): a broker asks the controller for a block of producer ids.

    version  changed
    0        flexible from the first (KIP-730)

Between brokers only. A kdist broker takes its blocks from ZooKeeper itself; Apache Kafka's ask.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import int16, int32, int64, message


@message(flexible=0)
class AllocateProducerIdsRequest:
    """The broker that wants ids, by its registration."""

    broker_id: int32
    broker_epoch: int64 = -1


@message(flexible=0)
class AllocateProducerIdsResponse:
    """A block of `producer_id_len` ids, or an error."""

    throttle_time_ms: int32 = 0
    error_code: int16
    producer_id_start: int64 = 0
    producer_id_len: int32 = 0


API = Api(
    67,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    newest=0,
    is_between_brokers=True,
)
