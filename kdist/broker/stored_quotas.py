"""The quotas of users and clients: names, values, whose goes first, and what is stored.

Kafka's names and meanings, and the values that it writes to ZooKeeper, in `/config/clients` and
`/config/users`: bytes a second as integers. What is stored and is no quota, or has no possible
value, is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kdist.broker.settings.stored import Overrides, Owner, decode_stored
from kdist.config.kinds import INT64_MAX, Kind, read_text
from kdist.errors import ApiError, Error
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import NoNode
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
MUTATION = QuotaRow(
    "controller_mutation_rate",
    "mutation",
    Kind.DOUBLE,
    1,
    "Partitions a second that the controller may create and delete for the client.",
)
ROWS = {row.name: row for row in (PRODUCE, FETCH, REQUEST, MUTATION)}

Limits = Mapping[str, float]
"""Quotas by name, as given: bytes a second, percent."""

CLIENTS, USERS = "clients", "users"  # the znodes below `/config`
_ELSEWHERE = "connection_creation_rate"
CREDENTIAL = "SCRAM-"  # so begins what is stored beside a user's quotas
_EPSILON = 1e-6  # as in Kafka: floating point comes over the wire
_READS_AT_ONCE = 200


class Entity(NamedTuple):
    """Whose quotas: a user's, a client id's, or those of a user's clients with that id.

    None is no part of it; `DEFAULT_ENTITY` stands for each that has none of its own.
    """

    user: str | None
    client_id: str | None

    @property
    def owner(self) -> Owner:
        """What stores them."""
        if self.user is None:
            assert self.client_id is not None, "a quota is somebody's"
            return Owner(znodes.CLIENT_SETTINGS, (self.client_id,))
        if self.client_id is None:
            return Owner(znodes.USER_SETTINGS, (self.user,))
        return Owner(znodes.USER_CLIENT_SETTINGS, (self.user, self.client_id))

    def __str__(self) -> str:
        parts = (("client", self.client_id), ("user", self.user))
        return " of ".join(f"{noun} {name!r}" for noun, name in parts if name is not None)


def entity_of(path: str) -> Entity | None:
    """Whose quotas a znode has; None for one that kdist would not write."""
    for row, takes_user in (
        (znodes.CLIENT_SETTINGS, False),
        (znodes.USER_SETTINGS, True),
        (znodes.USER_CLIENT_SETTINGS, True),
    ):
        names = row.names(path)
        if names is not None:
            if names.count(DEFAULT_ENTITY) != path.split("/").count(DEFAULT_ENTITY):
                return None  # a name that only looks like the default
            return Entity(names[0] if takes_user else None, [*names, None][int(takes_user)])
    return None


def levels(user: str, client_id: str) -> Iterator[Entity]:
    """Whose quota a client has: the first that is set (KIP-55)."""
    for each in (user, DEFAULT_ENTITY):
        yield Entity(each, client_id)
        yield Entity(each, DEFAULT_ENTITY)
        yield Entity(each, None)
    yield Entity(None, client_id)
    yield Entity(None, DEFAULT_ENTITY)


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
    if name == _ELSEWHERE:
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
        if name.startswith(CREDENTIAL):
            continue
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


def in_force(
    limits: Mapping[Entity, Limits], user: str, client_id: str
) -> Iterator[tuple[QuotaRow, float, Entity]]:
    """Each quota that a client has, its value, and whose that is."""
    found = [(each, limits[each]) for each in levels(user, client_id) if each in limits]
    for name, row in ROWS.items():
        for entity, given in found:
            if name in given:
                yield row, given[name], entity
                break


def limits_of(entity: Entity, stored: Mapping[str, str]) -> Limits:
    """The quotas by what is stored; what is ignored is logged."""
    limits, faults = usable(stored)
    for fault in faults:
        logger.warning("ignored a quota of %s: %s", entity, fault)
    return limits


async def read_all(zk: ZooKeeper, *kinds: str) -> dict[Entity, Overrides]:
    """What is stored for all clients, for all users and their clients, or for both."""
    paths = [path for kind in kinds for path in await _children(zk, f"/config/{kind}")]
    users = [path for path in paths if path.startswith(f"/config/{USERS}/")]
    for start in range(0, len(users), _READS_AT_ONCE):
        some = users[start : start + _READS_AT_ONCE]
        for found in await asyncio.gather(*(_children(zk, f"{user}/{CLIENTS}") for user in some)):
            paths += found
    entities = [entity for path in paths if (entity := entity_of(path)) is not None]
    return await read(zk, *entities)


async def read(zk: ZooKeeper, *entities: Entity) -> dict[Entity, Overrides]:
    """What is stored for each of these."""
    found: dict[Entity, Overrides] = {}
    for start in range(0, len(entities), _READS_AT_ONCE):
        some = entities[start : start + _READS_AT_ONCE]
        owners = [entity.owner for entity in some]
        znodes_read = await zk.get_many([owner.path for owner in owners])
        for entity, owner, znode in zip(some, owners, znodes_read, strict=True):
            found[entity] = decode_stored(owner.row, owner.path, znode)
    return found


async def _children(zk: ZooKeeper, path: str) -> list[str]:
    try:
        return [f"{path}/{name}" for name in await zk.children(path)]
    except NoNode:
        return []
