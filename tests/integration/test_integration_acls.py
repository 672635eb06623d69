"""ACLs by clients and tools that nobody here wrote, of brokers with an authorizer.

`kafka-acls` also goes straight to ZooKeeper, which is real, by Kafka's AclAuthorizer: what that
writes is read by running brokers, and it reads what they write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding as ForeignBinding,
)
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, ACLPermissionType, KafkaAdminClient, ResourcePattern
from kafka.admin import ACLOperation as PythonOperation
from kafka.admin import ResourceType as PythonType
from peer.kafka_peer import run_tool

from kdist.client.admin.clients import Admin
from kdist.security.acl_filters import AclFilter
from tests.integration.broker_processes import BrokerProcess, broker_processes, settled
from tests.integration.zookeeper_server import ZooKeeperHost
from tests.unit.broker.broker_acls import AUTHORIZER

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("acls"), pytest.mark.timeout(600)]

SETTINGS = {name.replace(".", "_"): value for name, value in AUTHORIZER.items()}


@pytest.fixture(scope="module")
def where(zookeeper: ZooKeeperHost) -> str:
    return f"{zookeeper.settings.address}/acls"


@pytest.fixture(scope="module")
def brokers(where: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    directory = tmp_path_factory.mktemp("acls")
    with broker_processes(2, directory, where, **SETTINGS) as running:
        yield running


@pytest.fixture
def admins(brokers: list[BrokerProcess]) -> Iterator[list[Admin]]:
    """A client of each broker alone."""
    clients = [Admin(each.address) for each in brokers]
    yield clients
    clients[0].delete_acls([AclFilter()])
    settled(lambda: all(not shown(each) for each in clients))
    for each in clients:
        each.close()


def shown(admin: Admin) -> list[str]:
    return [str(each) for each in admin.describe_acls()]


def kafka_acls(*words: str) -> str:
    return run_tool("kafka.admin.AclCommand", *words)


def test_kafkas_tool_adds_lists_and_removes_acls(
    brokers: list[BrokerProcess], admins: list[Admin]
) -> None:
    first, second = (("--bootstrap-server", each.address) for each in brokers)
    add = ("--add", "--allow-principal", "User:alice", "--operation", "Read")
    said = kafka_acls(*first, *add, "--topic", "clicks", "--group", "readers")
    assert "Adding ACLs for resource" in said
    deny = ("--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.9", "--operation", "All")
    kafka_acls(*first, *deny, "--topic", "click", "--resource-pattern-type", "prefixed")
    expected = [
        "Topic:PREFIXED:'click': Deny 'User:*' from '10.0.0.9' All",
        "Topic:LITERAL:'clicks': Allow 'User:alice' from '*' Read",
        "Group:LITERAL:'readers': Allow 'User:alice' from '*' Read",
    ]
    settled(lambda: shown(admins[1]) == expected)
    listed = kafka_acls(*second, "--list", "--topic", "clicks", "--resource-pattern-type", "match")
    assert "principal=User:alice, host=*, operation=READ, permissionType=ALLOW" in listed
    assert "principal=User:*, host=10.0.0.9, operation=ALL, permissionType=DENY" in listed
    assert "readers" not in listed
    kafka_acls(*second, "--remove", "--force", "--topic", "clicks")
    settled(lambda: shown(admins[0]) == [expected[0], expected[2]])


def test_what_kafkas_authorizer_writes_is_read_and_it_reads_what_kdist_writes(
    where: str, brokers: list[BrokerProcess], admins: list[Admin]
) -> None:
    straight = ("--authorizer-properties", f"zookeeper.connect={where}")
    words = ("--allow-principal", "User:CN=b1,O=x", "--operation", "Describe")
    kafka_acls(*straight, "--add", *words, "--topic", "a b", "--allow-host", "10.0.0.1")
    kafka_acls(
        *straight, "--add", *words, "--transactional-id", "x", "--resource-pattern-type", "prefixed"
    )
    expected = [
        "Topic:LITERAL:'a b': Allow 'User:CN=b1,O=x' from '10.0.0.1' Describe",
        "TransactionalId:PREFIXED:'x': Allow 'User:CN=b1,O=x' from '*' Describe",
    ]
    for admin in admins:
        settled(lambda admin=admin: shown(admin) == expected)
    kafka_acls(
        *("--bootstrap-server", brokers[0].address, "--add", "--allow-principal", "User:bob"),
        *("--operation", "Write", "--topic", "a b"),
    )
    listed = kafka_acls(*straight, "--list", "--topic", "a b")
    assert "principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW" in listed
    assert "principal=User:CN=b1,O=x, host=10.0.0.1" in listed
    kafka_acls(*straight, "--remove", "--force", "--topic", "a b")
    settled(lambda: shown(admins[1]) == expected[1:])


def test_librdkafka_creates_describes_and_deletes_acls(
    brokers: list[BrokerProcess], admins: list[Admin]
) -> None:
    client = AdminClient({"bootstrap.servers": brokers[0].address})
    words = (
        ResourcePatternType.PREFIXED,
        "User:eve",
        "*",
        AclOperation.ALTER,
        AclPermissionType.DENY,
    )
    binding = ForeignBinding(ResourceType.TOPIC, "web.", *words)
    wrong = ForeignBinding(ResourceType.TOPIC, "a/b", *words)
    created = client.create_acls([binding, wrong])
    assert created[binding].result(30) is None
    with pytest.raises(KafkaException, match="cannot have '/'"):
        created[wrong].result(30)
    wanted = AclBindingFilter(
        ResourceType.ANY, "web.site", ResourcePatternType.MATCH, None, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    expected = ["Topic:PREFIXED:'web.': Deny 'User:eve' from '*' Alter"]
    settled(lambda: all(shown(each) == expected for each in admins))
    assert client.describe_acls(wanted).result(30) == [binding]
    assert client.delete_acls([wanted])[wanted].result(30) == [binding]


def test_kafka_python_creates_describes_and_deletes_acls(
    brokers: list[BrokerProcess], admins: list[Admin], request: pytest.FixtureRequest
) -> None:
    client = KafkaAdminClient(bootstrap_servers=brokers[0].address)
    request.addfinalizer(client.close)
    resource = ResourcePattern(PythonType.GROUP, "readers")
    acl = ACL("User:joe", "*", PythonOperation.READ, ACLPermissionType.ALLOW, resource)
    created = client.create_acls([acl])
    assert created == {"succeeded": [acl], "failed": []}
    expected = ["Group:LITERAL:'readers': Allow 'User:joe' from '*' Read"]
    settled(lambda: all(shown(each) == expected for each in admins))
    anything = ACLFilter("User:joe", None, PythonOperation.ANY, ACLPermissionType.ANY, resource)
    found, error = client.describe_acls(anything)
    assert (found, error.errno) == ([acl], 0)
    ((_, deleted, _),) = client.delete_acls([anything])
    assert deleted == [acl]
