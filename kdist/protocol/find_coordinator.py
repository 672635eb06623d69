"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

version  changed
0        groups only
1        key type, 0 group or 1 transaction; response: throttle time, error message (KIP-98)
2        throttling happens after the response is sent (KIP-219)
3        flexible (KIP-482)
4        many keys at once: `coordinator_keys` and `coordinators` (KIP-699)
"""

from __future__ import annotations

from kdist.protocol.api import Api
from kdist.protocol.schema import at, int8, int16, int32, message, nullable_string, string, struct

GROUP_KEY = 0
TRANSACTION_KEY = 1


@message(flexible=3)
class FindCoordinatorRequest:
    """Up to version 3 `key`, from 4 on `coordinator_keys`; all of one type."""

    key: string = at(until=3, default="")
    key_type: int8 = at(since=1, default=GROUP_KEY)
    coordinator_keys: list[string] = at(since=4, default=[])


@struct
class Coordinator:
    """The coordinator of one key; node id -1 and no host if there is an error."""

    key: string
    node_id: int32
    host: string
    port: int32
    error_code: int16
    error_message: nullable_string = None


@message(flexible=3)
class FindCoordinatorResponse:
    """Up to version 3 the fields of one coordinator, from 4 on `coordinators`."""

    throttle_time_ms: int32 = at(since=1, default=0, ignorable=True)
    error_code: int16 = at(until=3, default=0)
    error_message: nullable_string = at(since=1, until=3, default=None, ignorable=True)
    node_id: int32 = at(until=3, default=0)
    host: string = at(until=3, default="")
    port: int32 = at(until=3, default=0)
    coordinators: list[Coordinator] = at(since=4, default=[])


API = Api(10, FindCoordinatorRequest, FindCoordinatorResponse, newest=4)
