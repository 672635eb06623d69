"""ACLs: describe those in force, create and delete some (KIP-140).

Any broker does it. The others follow within moments: what one describes may be a little old.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from kdist.client.admin.outcomes import SomeFailed, fault_of, listed
from kdist.client.cluster import Cluster
from kdist.errors import ApiError
from kdist.protocol.create_acls import AclCreation, CreateAclsRequest
from kdist.protocol.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kdist.protocol.describe_acls import DescribeAclsRequest
from kdist.security.acl_filters import AclFilter, show_acl
from kdist.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType

Send = Callable[[Any], Awaitable[Any]]
"""Sends a request to whoever keeps ACLs; returns the answer."""

EVERY = AclFilter()


class AclBinding(NamedTuple):
    """An ACL, and the pattern of resources that it is of."""

    pattern: Pattern
    acl: Acl

    def __str__(self) -> str:
        return show_acl(self.pattern, self.acl)


async def describe_acls(cluster: Cluster, wanted: AclFilter | None = None) -> list[AclBinding]:
    """The ACLs in force that match, in order; all of them if no filter is given."""
    return await describe_by(sending(cluster), wanted or EVERY)


async def create_acls(cluster: Cluster, acls: Iterable[AclBinding]) -> None:
    """Create ACLs; those that there are already stay. `SomeFailed` if any could not be."""
    await create_by(sending(cluster), acls)


async def delete_acls(cluster: Cluster, filters: Iterable[AclFilter]) -> list[AclBinding]:
    """Delete the ACLs that match any of the filters, and return them in order.

    `SomeFailed` if some filters could not be carried out: `done` has what the others have deleted.
    """
    return await delete_by(sending(cluster), filters)


def sending(cluster: Cluster) -> Send:
    """To any broker."""

    async def send(request: Any) -> Any:
        await cluster.retried(cluster.metadata)

        async def ask() -> Any:
            return await (await cluster.any_client()).send(request)

        return await cluster.retried(ask)

    return send


# By other ways than a cluster's connections


async def describe_by(send: Send, wanted: AclFilter) -> list[AclBinding]:
    """As `describe_acls`."""
    answer = await send(DescribeAclsRequest(**_fields(wanted)))
    error = fault_of(answer.error_code, "ACLs", answer.error_message)
    if error is not None:
        raise error
    return sorted(_binding(of, acl, of.pattern_type) for of in answer.resources for acl in of.acls)


async def create_by(send: Send, acls: Iterable[AclBinding]) -> None:
    """As `create_acls`."""
    wanted = listed(acls)
    creations = [
        AclCreation(
            resource_type=pattern.type,
            resource_name=pattern.name,
            resource_pattern_type=pattern.kind,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for pattern, acl in wanted
    ]
    answer = await send(CreateAclsRequest(creations=creations))
    failed: dict[AclBinding, ApiError] = {}
    for binding, result in zip(wanted, answer.results, strict=True):
        error = fault_of(result.error_code, str(binding), result.error_message)
        if error is not None:
            failed[binding] = error
    if failed:
        raise SomeFailed(failed, dict.fromkeys(each for each in wanted if each not in failed))


async def delete_by(send: Send, filters: Iterable[AclFilter]) -> list[AclBinding]:
    """As `delete_acls`."""
    wanted = listed(filters)
    asked = [DeleteAclsFilter(**_fields(each)) for each in wanted]
    answer = await send(DeleteAclsRequest(filters=asked))
    failed: dict[AclFilter, ApiError] = {}
    done: dict[AclFilter, list[AclBinding]] = {}
    for each, result in zip(wanted, answer.filter_results, strict=True):
        codes = [result, *result.matching_acls]
        worst = next((code for code in codes if code.error_code), result)
        error = fault_of(worst.error_code, "ACLs", worst.error_message)
        deleted = [acl for acl in result.matching_acls if not acl.error_code]
        done[each] = sorted(_binding(acl, acl, acl.pattern_type) for acl in deleted)
        if error is not None:
            failed[each] = error
    if failed:
        raise SomeFailed(failed, done)
    return sorted(each for found in done.values() for each in found)


def _fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.kind,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _binding(of: Any, acl: Any, kind: int) -> AclBinding:
    pattern = Pattern(ResourceType(of.resource_type), of.resource_name, PatternType(kind))
    operation, permission = Operation(acl.operation), Permission(acl.permission_type)
    return AclBinding(pattern, Acl(acl.principal, acl.host, operation, permission))
