"""ACLs by the admin client, asked of a broker that has an authorizer, and of one that has none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kdist import Admin, SomeFailed
from kdist.client.admin.acls import AclBinding
from kdist.errors import Error
from kdist.security.acl_filters import AclFilter
from kdist.security.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType
from tests.refusals import refused
from tests.unit.broker.broker_acls import AUTHORIZER
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster

CLICKS = Pattern(ResourceType.TOPIC, "clicks", PatternType.LITERAL)
NOWHERE = Pattern(ResourceType.TOPIC, "a/b", PatternType.LITERAL)
READS = Acl("User:alice", "*", Operation.READ, Permission.ALLOW)
WRITES = READS._replace(operation=Operation.WRITE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("acls"), 1, AUTHORIZER) as running:
        yield running


@pytest.fixture
def admin(cluster: CliCluster) -> Iterator[Admin]:
    with Admin(cluster.address) as client:
        yield client
        client.delete_acls([AclFilter()])


def test_acls_are_created_described_in_order_and_deleted(admin: Admin) -> None:
    both = [AclBinding(CLICKS, READS), AclBinding(CLICKS, WRITES)]
    admin.create_acls(reversed(both))
    admin.create_acls(both)
    described = admin.describe_acls()
    assert described == both
    assert admin.describe_acls(AclFilter(operation=Operation.WRITE)) == both[1:]
    assert (
        admin.delete_acls([AclFilter(operation=Operation.READ), AclFilter(name="no")]) == both[:1]
    )
    assert admin.delete_acls([AclFilter()]) == both[1:]
    assert admin.describe_acls() == []


def test_an_acl_that_cannot_be_does_not_keep_others_from_being_created(admin: Admin) -> None:
    good, bad = AclBinding(CLICKS, READS), AclBinding(NOWHERE, READS)
    with pytest.raises(SomeFailed) as some:
        admin.create_acls([bad, good])
    assert list(some.value.failed) == [bad]
    assert list(some.value.done) == [good]
    assert admin.describe_acls() == [good]


def test_a_filter_that_means_nothing_does_not_keep_others_from_deleting(admin: Admin) -> None:
    admin.create_acls([AclBinding(CLICKS, READS)])
    unknown = AclFilter(operation=Operation.UNKNOWN)
    with pytest.raises(SomeFailed) as some:
        admin.delete_acls([unknown, AclFilter(name="clicks")])
    assert list(some.value.failed) == [unknown]
    assert some.value.done[AclFilter(name="clicks")] == [AclBinding(CLICKS, READS)]
    with refused(Error.INVALID_REQUEST):
        admin.describe_acls(unknown)


def test_a_broker_without_an_authorizer_refuses(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        cli_cluster(tmp_path_factory.mktemp("plain"), 1) as plain,
        Admin(plain.address) as admin,
    ):
        with refused(Error.SECURITY_DISABLED):
            admin.describe_acls()
        with refused(Error.SECURITY_DISABLED):
            admin.create_acls([AclBinding(CLICKS, READS)])
        with refused(Error.SECURITY_DISABLED):
            admin.delete_acls([AclFilter()])
