"""The quotas that a client can have: names, values, and what is stored in `/config/clients`.

Kafka's names and meanings, and the values that it writes to ZooKeeper: bytes a second as integers.
For each quota a client's own value takes precedence over the default of all clients. What is stored
and is no quota, or has no possible value, is ignored.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kdist.broker.settings.stored import Overrides, decode_stored
from kdist.config.kinds import INT64_MAX, Kind, read_text
from kdist.errors import ApiError, Error
from kdist.zk import znodes
from kdist.zk.client import Znode, ZooKeeper
from kdist.zk.znodes import DEFAULT_ENTITY

logger = logging.getLogger(__name__)


class QuotaRow(NamedTuple):
    """A quota. A budget's unit is `per` of its own: a hundredth, where a quota is in percent."""

    name: str
    noun: str
    kind: Kind
    per: float
    doc: str


PRODUCE = QuotaRow(
    "producer_byte_rate",
    "produce",
    Kind.LONG,
    1,
    "Bytes a second that the client may produce to each broker.",
)
FETCH = QuotaRow(
    "consumer_byte_rate",
    "fetch",
    Kind.LONG,
    1,
    "Bytes a second that the client may fetch from each broker.",
)
REQUEST = QuotaRow(
    "request_percentage",
    "request",
    Kind.DOUBLE,
    100,
    "Percent of its one thread's time that each broker may spend on the client.",
)
ROWS = {row.name: row for row in (PRODUCE, FETCH, REQUEST)}

Limits = Mapping[str, float]
"""A client's quotas by name, as given: bytes a second, percent."""

_ELSEWHERE = ("controller_mutation_rate", "connection_creation_rate")
_EPSILON = 1e-6  # as in Kafka: floating point comes over the wire
_READS_AT_ONCE = 200
_ROW = znodes.CLIENT_SETTINGS


def text_of(name: str, value: float) -> str:
    """A quota as it is stored. ApiError INVALID_REQUEST if it is no quota or no value of it."""
    row = require_row(name)
    if not (math.isfinite(value) and value / row.per > 0):  # which rounds the smallest to 0
        raise ApiError(Error.INVALID_REQUEST, f"{name} is {value:g}, and must be above 0")
    if row.kind is Kind.DOUBLE:
        return repr(value)
    whole = min(int(value + _EPSILON), INT64_MAX)  # which is no double: it comes as one more
    if abs(whole - value) > _EPSILON or whole <= 0:
        detail = f"{name} is {value:g}, and must be a whole number of at most {INT64_MAX}"
        raise ApiError(Error.INVALID_REQUEST, detail)
    return str(whole)


def require_row(name: str) -> QuotaRow:
    """The row of that name; ApiError INVALID_REQUEST if there is none."""
    if name in _ELSEWHERE:
        raise ApiError(Error.INVALID_REQUEST, f"kdist has no {name} yet")
    if name not in ROWS:
        known = ", ".join(ROWS)
        raise ApiError(Error.INVALID_REQUEST, f"{name!r} is not a quota: there are {known}")
    return ROWS[name]


def usable(stored: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """The quotas among what is stored, and a sentence for each that is ignored.

    Anybody may have written anything to ZooKeeper.
    """
    limits: dict[str, float] = {}
    faults: list[str] = []
    for name, text in stored.items():
        try:
            value = float(read_text(require_row(name).kind, text))
            text_of(name, value)
        except ApiError as error:
            faults.append(error.detail or name)
        except ValueError:
            faults.append(f"{name} is {text!r}, which is not a number")
        else:
            limits[name] = value
    return limits, faults


def in_force(own: Limits, default: Limits) -> Iterator[tuple[QuotaRow, float, bool]]:
    """Each quota that a client has, its value, and whether that is its own."""
    for name, row in ROWS.items():
        if name in own:
            yield row, own[name], True
        elif name in default:
            yield row, default[name], False


def limits_of(client_id: str, stored: Mapping[str, str]) -> Limits:
    """The quotas that a client has by what is stored; what is ignored is logged."""
    limits, faults = usable(stored)
    for fault in faults:
        logger.warning("ignored a quota of client %r: %s", client_id, fault)
    return limits


async def read_all(zk: ZooKeeper) -> dict[str, Overrides]:
    """What is stored, by client id, and by `DEFAULT_ENTITY` for the default."""
    nodes = await zk.children(_ROW.parent)
    names = [name for node in nodes if (name := client_of(node)) is not None]
    found: dict[str, Overrides] = {}
    for start in range(0, len(names), _READS_AT_ONCE):
        some = names[start : start + _READS_AT_ONCE]
        znodes_read = await zk.get_many([_ROW.path(name) for name in some])
        for name, znode in zip(some, znodes_read, strict=True):
            found[name] = _decoded(name, znode)
    return found


async def read_one(zk: ZooKeeper, client_id: str) -> Overrides:
    """What is stored of a client, or of `DEFAULT_ENTITY`."""
    (znode,) = await zk.get_many([_ROW.path(client_id)])
    return _decoded(client_id, znode)


def client_of(node: str) -> str | None:
    """The client id that a znode's name stands for; None for one that kdist would not write."""
    names = _ROW.names(f"{_ROW.parent}/{node}")
    if names is None or (names[0] == DEFAULT_ENTITY) != (node == DEFAULT_ENTITY):
        return None
    return names[0]


def _decoded(client_id: str, znode: Znode | None) -> Overrides:
    return decode_stored(_ROW, _ROW.path(client_id), znode)
