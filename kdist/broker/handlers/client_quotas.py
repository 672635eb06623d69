"""DescribeClientQuotas and AlterClientQuotas (keys 48, 49): quotas by client id (KIP-546).

Both read what is stored in ZooKeeper, and any broker answers them. A change is checked as a whole,
written with a notification to all brokers, and in force on this one when it is answered.

Quotas of users need to know who somebody is, which kdist does not yet; those of addresses are of
new connections, which it does not limit by rate. There are none to describe, and to accept either
would promise what is not done: changes are INVALID_REQUEST. Source: Kafka's `ZkAdminManager` and
`ClientQuotaManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from kdist.broker.settings.stored import Overrides, Owner, StoredSettings, unanswered
from kdist.broker.stored_quotas import read_all, require_row, text_of, usable
from kdist.errors import ApiError, Error
from kdist.protocol.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    AlteredQuotasResult,
    QuotaChange,
)
from kdist.protocol.describe_client_quotas import (
    ANY,
    CLIENT_ID,
    DEFAULT,
    EXACT,
    IP,
    USER,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntity,
    QuotaEntry,
    QuotaFilter,
    QuotaValue,
)
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import ZooKeeperError
from kdist.zk.znodes import DEFAULT_ENTITY

_NO_PATH = frozenset(("", ".", ".."))  # names that ZooKeeper cannot have in a path
_NOT_YET = {
    USER: "kdist has no users yet, and so no quotas of theirs: name a client-id alone",
    IP: "kdist has no quotas of addresses; max.connections.per.ip limits their connections",
}

Matches = Callable[[str], bool]


class ClientQuotasHandler:
    """Owner: the broker."""

    def __init__(self, zk: ZooKeeper, stored: StoredSettings) -> None:
        self._zk = zk
        self._stored = stored

    async def describe(self, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        """The quotas of all clients that match; the default has no name."""
        try:
            matches = _matcher(request)
            stored = await self._read_all()
        except ApiError as error:
            return DescribeClientQuotasResponse(error_code=error.error, error_message=error.detail)
        entries = [
            QuotaEntry(entity=[_entity(name)], values=_values(settings))
            for name, settings in sorted(stored.items())
            if matches(name) and usable(settings)[0]
        ]
        return DescribeClientQuotasResponse(error_code=Error.NONE, entries=entries)

    async def _read_all(self) -> dict[str, Overrides]:
        try:
            return await read_all(self._zk)
        except ZooKeeperError as failure:
            raise unanswered(failure) from failure

    async def alter(self, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        """One result for each entity, in the order of the request."""
        counts = Counter(map(_key, request.entries))
        results = []
        for each in request.entries:
            result = AlteredQuotasResult(
                error_code=Error.NONE, error_message=None, entity=each.entity
            )
            try:
                if counts[_key(each)] > 1:
                    raise ApiError(Error.INVALID_REQUEST, "the request names the client twice")
                await self._alter(each, is_trial=request.validate_only)
            except ApiError as error:
                result.error_code, result.error_message = error.error, error.detail
            results.append(result)
        return AlterClientQuotasResponse(entries=results)

    async def _alter(self, asked: AlteredQuotas, *, is_trial: bool) -> None:
        owner = Owner(znodes.CLIENT_SETTINGS, _name_of(asked.entity))
        plan = partial(_after, asked.ops)
        if is_trial:
            plan(await self._stored.read(owner))
        else:
            await self._stored.change(owner, plan)


# Changes (pure)


def _key(asked: AlteredQuotas) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((e.entity_type, e.entity_name or "") for e in asked.entity))


def _name_of(entity: Sequence[QuotaEntity]) -> str:
    """The client that an entity is; `DEFAULT_ENTITY` for all. ApiError."""
    for part in entity:
        _check_type(part.entity_type)
    if len(entity) != 1:
        raise ApiError(Error.INVALID_REQUEST, f"a quota is for one {CLIENT_ID}")
    name = entity[0].entity_name
    if name is None:
        return DEFAULT_ENTITY
    if name in _NO_PATH or name == DEFAULT_ENTITY:
        raise ApiError(Error.INVALID_REQUEST, f"no client can be named {name!r}")
    return name


def _check_type(kind: str) -> None:
    if kind in _NOT_YET:
        raise ApiError(Error.INVALID_REQUEST, _NOT_YET[kind])
    if kind != CLIENT_ID:
        raise ApiError(Error.UNSUPPORTED_VERSION, f"quotas are for a {CLIENT_ID}, not a {kind!r}")


def _after(changes: Sequence[QuotaChange], before: Overrides) -> Overrides:
    """What is stored after the changes, which are made together. ApiError INVALID_REQUEST."""
    counts = Counter(change.key for change in changes)
    after = dict(before)
    for change in changes:
        if counts[change.key] > 1:
            raise ApiError(Error.INVALID_REQUEST, f"the request names {change.key} twice")
        if change.remove:
            _check_removed(change.key, before)
            after.pop(change.key, None)
        else:
            after[change.key] = text_of(change.key, change.value)
    return after


def _check_removed(name: str, before: Overrides) -> None:
    """What another program has stored can be removed, whatever it is."""
    if name not in before:
        require_row(name)


# What is described (pure)


def _entity(name: str) -> QuotaEntity:
    return QuotaEntity(entity_type=CLIENT_ID, entity_name=None if name == DEFAULT_ENTITY else name)


def _values(settings: Overrides) -> list[QuotaValue]:
    limits, _ = usable(settings)
    return [QuotaValue(key=name, value=value) for name, value in limits.items()]


def _matcher(request: DescribeClientQuotasRequest) -> Matches:
    """Whether a client is asked for; there are no other entities. ApiError.

    A filter of users or addresses asks for those, and of any client for both together.
    """
    filters = {each.entity_type: each for each in request.components}
    if len(filters) < len(request.components):
        raise ApiError(Error.INVALID_REQUEST, "the request has two filters of one type")
    if IP in filters and len(filters) > 1:
        raise ApiError(Error.INVALID_REQUEST, "addresses have no other entity beside them")
    for kind in filters.keys() - _NOT_YET.keys():
        _check_type(kind)
    matches = {kind: _matching(each) for kind, each in filters.items()}
    if not filters:  # strict: entities that have no type at all
        return lambda _: not request.strict
    if matches.keys() & _NOT_YET.keys():
        return lambda _: False
    return matches[CLIENT_ID]


def _matching(wanted: QuotaFilter) -> Matches:
    if wanted.match_type == EXACT:
        if wanted.match is None:
            raise ApiError(Error.INVALID_REQUEST, "a filter for an exact name has no name")
        return lambda name: name == wanted.match != DEFAULT_ENTITY
    if wanted.match is not None:
        raise ApiError(Error.INVALID_REQUEST, "only a filter for an exact name has a name")
    if wanted.match_type == DEFAULT:
        return lambda name: name == DEFAULT_ENTITY
    if wanted.match_type == ANY:
        return lambda _: True
    raise ApiError(Error.INVALID_REQUEST, f"filters have no match type {wanted.match_type}")
