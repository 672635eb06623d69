"""DescribeAcls, CreateAcls and DeleteAcls (keys 29 to 31): any broker answers them (KIP-140).

Described is what is in force on this broker. Changed is what is stored: it is read from ZooKeeper
when it is changed, so that what another broker has just been told to add can be deleted by way of
this one (KAFKA-9386). Each change is logged, with who asked for it and from where.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import or_
from typing import Any

from kdist.broker.settings.stored import unanswered
from kdist.broker.stored_security import (
    Acls,
    Plan,
    StoredAcls,
    in_batches,
    list_patterns,
    read_acls,
)
from kdist.errors import ApiError, Error
from kdist.protocol.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from kdist.protocol.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kdist.protocol.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kdist.runtime.steps import parted
from kdist.security.acl_filters import AclFilter, fault_of, fault_of_name, show_acl
from kdist.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType
from kdist.security.principals import host_text
from kdist.zk import znodes
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)

_PATTERNS_PER_STEP = 500
_DISABLED = "no authorizer is configured on the broker: authorizer.class.name"


class AclsHandler:
    """Owner: the broker. `stored` is None if the broker has no authorizer.

    `who` asks for a change, and from where, for the log.
    """

    def __init__(self, stored: StoredAcls | None) -> None:
        self._stored = stored

    @property
    def _acls(self) -> StoredAcls:
        if self._stored is None:
            raise ApiError(Error.SECURITY_DISABLED, _DISABLED)
        return self._stored

    async def describe(self, asked: DescribeAclsRequest) -> DescribeAclsResponse:
        """The ACLs in force that match, by pattern. Of many, some in each turn of the loop."""
        try:
            table, wanted = self._acls.table, _filter(asked)
        except ApiError as error:
            return DescribeAclsResponse(error_code=error.error, error_message=error.detail)
        resources = []
        for some in parted(list(table.patterns()), _PATTERNS_PER_STEP):
            for pattern in filter(wanted.matches_pattern, some):
                acls = [acl for acl in table.stored(pattern) if wanted.matches(acl)]
                if acls:
                    resources.append(_described(pattern, acls))
            await asyncio.sleep(0)
        return DescribeAclsResponse(error_code=Error.NONE, resources=resources)

    async def create(self, asked: CreateAclsRequest, who: str) -> CreateAclsResponse:
        """One result for each ACL, in the order of the request."""
        faults = [self._fault(each) for each in asked.creations]
        bindings = [_binding(each) for each in asked.creations]
        added: defaultdict[Pattern, set[Acl]] = defaultdict(set)
        for (pattern, acl), fault in zip(bindings, faults, strict=True):
            if fault is None:
                added[pattern].add(acl)
        failed: dict[Pattern, ApiError] = {}
        for pattern, acls in added.items():
            try:
                await self._change(pattern, partial(or_, frozenset(acls)), who)
            except ApiError as error:
                failed[pattern] = error
        results = [
            AclCreationResult(**_outcome(fault or failed.get(pattern)))
            for (pattern, _), fault in zip(bindings, faults, strict=True)
        ]
        return CreateAclsResponse(results=results)

    def _fault(self, asked: AclCreation) -> ApiError | None:
        if self._stored is None:
            return ApiError(Error.SECURITY_DISABLED, _DISABLED)
        fault = fault_of(*_binding(asked))
        return None if fault is None else ApiError(Error.INVALID_REQUEST, fault)

    async def delete(self, asked: DeleteAclsRequest, who: str) -> DeleteAclsResponse:
        """One result for each filter; an ACL is in that of the first that it matches."""
        results = [
            DeleteAclsFilterResult(error_code=Error.NONE, error_message=None, matching_acls=[])
            for _ in asked.filters
        ]
        filters: dict[int, AclFilter] = {}
        for index, each in enumerate(asked.filters):
            try:
                _, filters[index] = self._acls, _filter(each)
            except ApiError as error:
                _fail(results[index], error)
        try:
            patterns = await self._matching(filters.values()) if filters else []
        except ZooKeeperError as failure:
            for index in filters:
                _fail(results[index], unanswered(failure))
        else:
            for pattern in patterns:
                await self._delete(pattern, filters, results, who)
        return DeleteAclsResponse(filter_results=results)

    async def _matching(self, filters: Collection[AclFilter]) -> list[Pattern]:
        """The patterns that filters match, and that have an ACL that one may match."""
        zk = self._acls.zk
        await zk.sync(znodes.ACL_CHANGES.path())
        only = [each.pattern() for each in filters]
        named = {
            pattern for pattern in only if pattern is not None and fault_of_name(pattern) is None
        }
        if None in only:
            for kind in (PatternType.LITERAL, PatternType.PREFIXED):
                named.update(await list_patterns(zk, kind))
        found: list[Pattern] = []
        for some in in_batches(sorted(named)):
            stored = await read_acls(zk, some)
            found += [each for each in some if _is_meant(filters, each, stored[each])]
        return found

    async def _delete(
        self,
        pattern: Pattern,
        filters: Mapping[int, AclFilter],
        results: Sequence[DeleteAclsFilterResult],
        who: str,
    ) -> None:
        matching = {i: each for i, each in filters.items() if each.matches_pattern(pattern)}

        def plan(before: Acls) -> Acls:
            return frozenset(a for a in before if not any(f.matches(a) for f in matching.values()))

        try:
            removed = await self._change(pattern, plan, who)
        except ApiError as error:
            for index in matching:
                _fail(results[index], error)
        else:
            for acl in sorted(removed):
                first = next(i for i, each in matching.items() if each.matches(acl))
                results[first].matching_acls.append(_deleted(pattern, acl))

    async def _change(self, pattern: Pattern, plan: Plan, who: str) -> Acls:
        """Make a change, and log it; the ACLs that it has removed. ApiError."""
        try:
            before, after = await self._acls.change(pattern, plan)
        except ZooKeeperError as failure:
            raise unanswered(failure) from failure
        for what, acls in (("added", after - before), ("removed", before - after)):
            for acl in sorted(acls):
                logger.info("%s %s the ACL of %s", who, what, show_acl(pattern, acl))
        return before - after


# What requests and responses say (pure)


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    found = AclFilter(
        ResourceType(asked.resource_type_filter),
        asked.resource_name_filter,
        PatternType(asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        Operation(asked.operation),
        Permission(asked.permission_type),
    )
    fault = found.fault()
    if fault is not None:
        raise ApiError(Error.INVALID_REQUEST, fault)
    return found


def _binding(asked: AclCreation) -> tuple[Pattern, Acl]:
    kind = PatternType(asked.resource_pattern_type)
    acl = Acl(
        asked.principal,
        host_text(asked.host),
        Operation(asked.operation),
        Permission(asked.permission_type),
    )
    return Pattern(ResourceType(asked.resource_type), asked.resource_name, kind), acl


def _is_meant(filters: Iterable[AclFilter], pattern: Pattern, acls: Acls | None) -> bool:
    """Whether any of a pattern's ACLs is; also if they cannot be read, so that it is told."""
    matching = [each for each in filters if each.matches_pattern(pattern)]
    if acls is None:
        return bool(matching)
    return any(each.matches(acl) for each in matching for acl in acls)


def _described(pattern: Pattern, acls: Iterable[Acl]) -> DescribeAclsResource:
    return DescribeAclsResource(
        resource_type=pattern.type,
        resource_name=pattern.name,
        pattern_type=pattern.kind,
        acls=[
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in sorted(acls)
        ],
    )


def _deleted(pattern: Pattern, acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=Error.NONE,
        error_message=None,
        resource_type=pattern.type,
        resource_name=pattern.name,
        pattern_type=pattern.kind,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _outcome(error: ApiError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": Error.NONE, "error_message": None}
    return {"error_code": error.error, "error_message": error.detail}


def _fail(result: DeleteAclsFilterResult, error: ApiError) -> None:
    result.error_code, result.error_message = error.error, error.detail
