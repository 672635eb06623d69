"""ControlledShutdown (key 7): a broker asks the controller to move its leaders before it stops.

    version  changed
    0        its request header has no client id
    1        an ordinary header
    2        broker epoch (KIP-380)
    3        flexible (KIP-482)

Between brokers only.
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int16, int32, int64, message, string, struct


@message(flexible=3)
class ControlledShutdownRequest:
    """The broker that wants to stop."""

    broker_id: int32
    broker_epoch: int64 = at(since=2, default=-1, ignorable=True)


@struct
class RemainingPartition:
    topic_name: string
    partition_index: int32


@message(flexible=3)
class ControlledShutdownResponse:
    """The broker repeats the request while partitions remain."""

    error_code: int16
    remaining_partitions: list[RemainingPartition]


API = Api(
    7,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    newest=3,
    is_between_brokers=True,
    is_version_0_nameless=True,
)
