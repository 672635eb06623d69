"""What an exception that nobody expected costs: the request that met it, or the broker.

It costs the request where nothing that others trust can have been left half changed: an API that
only reads, or an order that another task carries out. The request is answered UNKNOWN_SERVER_ERROR
if its response has a place for that, its connection is closed, and the crash is counted and logged.
So a client that sends the same poison again and again does not take down one broker after another.

It costs the broker (status 70) where what it wrote, or believes, may be wrong:

    a failed assertion                          something was already wrong
    the disk, a removed file, no memory         nothing that follows can be trusted
    an API of `_WRITERS`                        its handler changes state in steps, and was between
                                                two of them, unless it raised `PoisonousRequest`

Source: docs/principles.md, "Three kinds of wrong".
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from kdist.errors import DiskFailed, Error, PoisonousRequest
from kdist.metrics.broker import RequestMetrics
from kdist.metrics.declare import Family
from kdist.network.connection import Connection, ResponseSlot
from kdist.network.sending import release
from kdist.protocol import (
    controlled_shutdown,
    delete_groups,
    delete_records,
    heartbeat,
    join_group,
    leader_and_isr,
    leave_group,
    offset_commit,
    offset_delete,
    produce,
    stop_replica,
    sync_group,
    update_metadata,
)
from kdist.protocol.api import Api
from kdist.protocol.frame import Chunk, RequestHeader, encode_response
from kdist.protocol.schema import Shape, wire_fields
from kdist.protocol.versions import TABLE

logger = logging.getLogger(__name__)

_LOGS = (produce, delete_records)
_PARTITIONS = (leader_and_isr, stop_replica, update_metadata, controlled_shutdown)
_GROUPS = (
    *(join_group, sync_group, heartbeat, leave_group),
    *(offset_commit, offset_delete, delete_groups),
)
_WRITERS = frozenset(each.API.key for each in (*_LOGS, *_PARTITIONS, *_GROUPS))

# `OSError`: files are the only things that handlers use which raise it.
_ENDS_BROKER = (AssertionError, DiskFailed, MemoryError, OSError)

_BLANKS = {"bool": False, "string": "", "bytes": b"", "array": [], "uuid": uuid.UUID(int=0)}
_UNKNOWN = -1  # of numbers: offsets, ids and epochs


class _Dropped(ResponseSlot):
    """Whoever still answers a request that has crashed is not heard."""

    __slots__ = ()

    def __init__(self) -> None:
        self.chunks = ()

    def send(self, chunks: Sequence[Chunk]) -> None:
        release(chunks)


DROPPED = _Dropped()
"""In the place of the `ResponseSlot` of a request that has crashed."""


class Crashes:
    """Owner: the broker's `Service`."""

    def __init__(
        self, requests: Family[RequestMetrics], fail: Callable[[BaseException], None]
    ) -> None:
        """`fail` ends the broker."""
        self._apis = {api.key: (api, requests[(api.name,)]) for api in TABLE}
        self._fail = fail

    def meet(self, error: BaseException, key: int, connection: Connection) -> None:
        """Close the connection, or end the broker, for what a request of this API raised."""
        if ends_broker(error, key):
            self._fail(error)
            return
        name = "a request"
        if key in self._apis:
            api, metrics = self._apis[key]
            metrics.crashed += 1
            name = api.name
        sentence = "%s of %s met a bug: its connection is closed"
        logger.error(sentence, name, connection.peer, exc_info=error)
        connection.finish_soon()

    def refuse(
        self,
        error: BaseException,
        header: RequestHeader,
        slot: ResponseSlot,
        connection: Connection,
    ) -> None:
        """As `meet`, and answer the request before that unless it was. Nothing else may answer."""
        key, version, correlation_id, _ = header
        if slot.chunks is None and not ends_broker(error, key):
            response = error_response(self._apis[key][0], version, Error.UNKNOWN_SERVER_ERROR)
            if response is None:
                slot.discard()
            else:
                slot.send((encode_response(version, correlation_id, response),))
        self.meet(error, key, connection)


def ends_broker(error: BaseException, key: int) -> bool:
    """Whether state that others trust may be wrong, after a request of this API (pure)."""
    if isinstance(error, _ENDS_BROKER):
        return True
    return key in _WRITERS and not isinstance(error, PoisonousRequest)


def error_response(api: Api, version: int, error: Error) -> Any | None:
    """A response with this error alone; None if this version cannot carry it (pure)."""
    fields = wire_fields(api.response)
    if not any(each.name == "error_code" and each.is_in(version) for each in fields):
        return None
    blanks = {
        each.name: _blank(each.shape) for each in fields if each.default is dataclasses.MISSING
    }
    return api.response(**{**blanks, "error_code": error})


def _blank(shape: Shape) -> Any:
    return _BLANKS.get(shape.kind, None if shape.is_nullable else _UNKNOWN)
