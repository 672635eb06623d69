"""ACLs asked of brokers in virtual time, for the tests of that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kdist.errors import Error
from kdist.network.client import Client
from kdist.protocol.create_acls import AclCreation, AclCreationResult, CreateAclsRequest
from kdist.protocol.delete_acls import DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsRequest
from kdist.protocol.describe_acls import DescribeAclsRequest
from kdist.security.acl_filters import AclFilter
from kdist.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType

AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
NEWEST = 3
EVERYTHING = AclFilter()

Binding = tuple[Pattern, Acl]


def topic(name: str, kind: PatternType = PatternType.LITERAL) -> Pattern:
    return Pattern(ResourceType.TOPIC, name, kind)


def allow(who: str = "User:alice", operation: Operation = Operation.READ, host: str = "*") -> Acl:
    return Acl(who, host, operation, Permission.ALLOW)


async def create(
    client: Client, *bindings: Binding, version: int = NEWEST
) -> list[AclCreationResult]:
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
        for pattern, acl in bindings
    ]
    answer = await client.send(CreateAclsRequest(creations=creations), version)
    found: list[AclCreationResult] = answer.results
    return found


async def add(client: Client, *bindings: Binding) -> None:
    results = await create(client, *bindings)
    assert [each.error_code for each in results] == [Error.NONE] * len(bindings)


async def delete(
    client: Client, *filters: AclFilter, version: int = NEWEST
) -> list[DeleteAclsFilterResult]:
    asked = [DeleteAclsFilter(**_fields(each)) for each in filters]
    answer = await client.send(DeleteAclsRequest(filters=asked), version)
    found: list[DeleteAclsFilterResult] = answer.filter_results
    return found


async def describe(client: Client, wanted: AclFilter = EVERYTHING, version: int = NEWEST) -> Any:
    """The whole answer."""
    return await client.send(DescribeAclsRequest(**_fields(wanted)), version)


async def described(
    client: Client, wanted: AclFilter = EVERYTHING, version: int = NEWEST
) -> set[Binding]:
    answer = await describe(client, wanted, version)
    assert answer.error_code == Error.NONE, answer.error_message
    return {
        (
            Pattern(ResourceType(of.resource_type), of.resource_name, PatternType(of.pattern_type)),
            Acl(
                each.principal,
                each.host,
                Operation(each.operation),
                Permission(each.permission_type),
            ),
        )
        for of in answer.resources
        for each in of.acls
    }


def removed(results: Iterable[DeleteAclsFilterResult]) -> list[list[tuple[str, str, int]]]:
    """Name, principal and operation of what each filter has removed."""
    return [
        [(acl.resource_name, acl.principal, acl.operation) for acl in each.matching_acls]
        for each in results
    ]


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
