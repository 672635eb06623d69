"""DescribeClientQuotas and AlterClientQuotas (keys 48, 49): of users and clients (KIP-546).

Both read what is stored in ZooKeeper, and any broker answers them. A change is checked as a whole,
written with a notification to all brokers, and in force on this one when it is answered.

Quotas of addresses are of new connections, which kdist does not limit by rate. There are none to
describe, and to accept them would promise what is not done: changes are INVALID_REQUEST. Source:
Kafka's `ZkAdminManager` and `ClientQuotaManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from kdist.broker.settings.stored import Overrides, StoredSettings, unanswered
from kdist.broker.stored_quotas import (
    CLIENTS,
    CREDENTIAL,
    USERS,
    Entity,
    read_all,
    require_row,
    text_of,
    usable,
)
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
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import ZooKeeperError
from kdist.zk.znodes import DEFAULT_ENTITY

_NO_ADDRESSES = "kdist has no quotas of addresses; max.connections.per.ip limits their connections"
_NO_PATH = frozenset(("", ".", ".."))  # names that ZooKeeper cannot have in a path

Matches = Callable[[Entity], bool]


class ClientQuotasHandler:
    """Owner: the broker."""

    def __init__(self, zk: ZooKeeper, stored: StoredSettings) -> None:
        self._zk = zk
        self._stored = stored

    async def describe(self, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        """The quotas of all that match; the default has no name."""
        try:
            matches = _matcher(request)
            stored = await self._read_all()
        except ApiError as error:
            return DescribeClientQuotasResponse(error_code=error.error, error_message=error.detail)
        entries = [
            QuotaEntry(entity=_parts(entity), values=_values(settings))
            for entity, settings in sorted(stored.items(), key=lambda each: str(each[0]))
            if matches(entity) and usable(settings)[0]
        ]
        return DescribeClientQuotasResponse(error_code=Error.NONE, entries=entries)

    async def _read_all(self) -> dict[Entity, Overrides]:
        try:
            return await read_all(self._zk, CLIENTS, USERS)
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
                    raise ApiError(Error.INVALID_REQUEST, "the request names somebody twice")
                await self._alter(each, is_trial=request.validate_only)
            except ApiError as error:
                result.error_code, result.error_message = error.error, error.detail
            results.append(result)
        return AlterClientQuotasResponse(entries=results)

    async def _alter(self, asked: AlteredQuotas, *, is_trial: bool) -> None:
        owner = _entity(asked.entity).owner
        plan = partial(_after, asked.ops)
        if is_trial:
            plan(await self._stored.read(owner))
        else:
            await self._stored.change(owner, plan)


# Changes (pure)


def _key(asked: AlteredQuotas) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((e.entity_type, e.entity_name or "") for e in asked.entity))


def _entity(parts: Sequence[QuotaEntity]) -> Entity:
    """Whom the parts name. ApiError."""
    names: dict[str, str] = {}
    for part in parts:
        _check_type(part.entity_type)
        if part.entity_type == IP:
            raise ApiError(Error.INVALID_REQUEST, _NO_ADDRESSES)
        if part.entity_type in names:
            raise ApiError(Error.INVALID_REQUEST, f"a quota is for one {part.entity_type}")
        name = part.entity_name
        if name is not None and (name in _NO_PATH or name == DEFAULT_ENTITY):
            raise ApiError(Error.INVALID_REQUEST, f"no {part.entity_type} can be named {name!r}")
        names[part.entity_type] = DEFAULT_ENTITY if name is None else name
    if not names:
        raise ApiError(Error.INVALID_REQUEST, f"a quota is for a {USER}, a {CLIENT_ID} or both")
    return Entity(names.get(USER), names.get(CLIENT_ID))


def _check_type(kind: str) -> None:
    if kind not in (USER, CLIENT_ID, IP):
        raise ApiError(
            Error.UNSUPPORTED_VERSION, f"quotas are for a {USER} or {CLIENT_ID}, not a {kind!r}"
        )


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
    """What another program has stored can be removed, but for a credential: that is no quota."""
    if name not in before or name.startswith(CREDENTIAL):
        require_row(name)


# What is described (pure)


def _parts(entity: Entity) -> list[QuotaEntity]:
    return [
        QuotaEntity(entity_type=kind, entity_name=None if name == DEFAULT_ENTITY else name)
        for kind, name in ((USER, entity.user), (CLIENT_ID, entity.client_id))
        if name is not None
    ]


def _values(settings: Overrides) -> list[QuotaValue]:
    limits, _ = usable(settings)
    return [QuotaValue(key=name, value=value) for name, value in limits.items()]


def _matcher(request: DescribeClientQuotasRequest) -> Matches:
    """Whether an entity is asked for. ApiError.

    If the match is strict, it has no part that no filter asks for. Addresses have no quotas.
    """
    filters = {each.entity_type: each for each in request.components}
    if len(filters) < len(request.components):
        raise ApiError(Error.INVALID_REQUEST, "the request has two filters of one type")
    if IP in filters and len(filters) > 1:
        raise ApiError(Error.INVALID_REQUEST, "addresses have no other entity beside them")
    for kind in filters:
        _check_type(kind)
    wanted = {kind: _matching(each) for kind, each in filters.items()}
    absent = _is_absent if request.strict else _is_any
    of_user, of_client = wanted.get(USER, absent), wanted.get(CLIENT_ID, absent)
    if IP in filters:
        return lambda _: False
    return lambda entity: of_user(entity.user) and of_client(entity.client_id)


def _is_any(_: str | None) -> bool:
    return True


def _is_absent(name: str | None) -> bool:
    return name is None


def _matching(wanted: QuotaFilter) -> Callable[[str | None], bool]:
    if wanted.match_type == EXACT:
        if wanted.match is None:
            raise ApiError(Error.INVALID_REQUEST, "a filter for an exact name has no name")
        return lambda name: name == wanted.match != DEFAULT_ENTITY
    if wanted.match is not None:
        raise ApiError(Error.INVALID_REQUEST, "only a filter for an exact name has a name")
    if wanted.match_type == DEFAULT:
        return lambda name: name == DEFAULT_ENTITY
    if wanted.match_type == ANY:
        return lambda name: name is not None
    raise ApiError(Error.INVALID_REQUEST, f"filters have no match type {wanted.match_type}")
