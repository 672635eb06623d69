"""DescribeAcls, CreateAcls and DeleteAcls, asked of brokers in virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kdist.broker.handlers.acls import AclsHandler
from kdist.broker.stored_security import StoredAcls
from kdist.errors import Error, UserError
from kdist.model import Principal
from kdist.network.client import Client
from kdist.protocol.describe_acls import DescribeAclsRequest
from kdist.security.acl_filters import AclFilter
from kdist.security.acls import Operation, Pattern, PatternType, Permission, ResourceType
from kdist.storage.directory import LogDirectory
from kdist.zk.client import Znode
from kdist.zk.errors import ConnectionLoss
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_acls import (
    AUTHORIZER,
    add,
    allow,
    create,
    delete,
    describe,
    described,
    removed,
    topic,
)

PREFIXED = PatternType.PREFIXED
ALICE = Principal("User", "alice")
CLICKS, C = topic("clicks"), topic("c", PREFIXED)


def told(scenario: Callable[[Cluster, Client], Any]) -> None:
    """Run a scenario with one broker that has an authorizer, and a client of it."""
    cluster = Cluster(settings=AUTHORIZER)

    async def run() -> None:
        await cluster.started()
        await scenario(cluster, await cluster.client())

    cluster.run(run())


def by_two(scenario: Callable[[Cluster, Client, Client], Any]) -> None:
    """The same, with two brokers and a client of each."""
    cluster = Cluster(settings=AUTHORIZER)

    async def run() -> None:
        await cluster.started(1)
        await cluster.started(2)
        await scenario(cluster, await cluster.client(1), await cluster.client(2))

    cluster.run(run())


def plain(scenario: Callable[[Cluster, Client], Any]) -> None:
    cluster = Cluster()

    async def run() -> None:
        await cluster.started()
        await scenario(cluster, await cluster.client())

    cluster.run(run())


pytestmark = pytest.mark.played(by=told)
of_two = pytest.mark.played(by=by_two)


def acls_of(cluster: Cluster, broker: int = 1) -> StoredAcls:
    found = cluster.brokers[broker]._acls
    assert found is not None
    return found


def may_read(cluster: Cluster, name: str, broker: int = 1) -> bool:
    table = acls_of(cluster, broker).table
    return table.permits(ALICE, "10.0.0.1", Operation.READ, ResourceType.TOPIC, name)


async def stored(cluster: Cluster, path: str, broker: int = 1) -> Any:
    return json.loads((await cluster.zks[broker].get(path)).data)


def metrics(cluster: Cluster) -> dict[str, float]:
    lines = cluster.brokers[1].measures.exposition.render().decode().splitlines()
    found = (line.split() for line in lines if line.startswith("kdist_acl_"))
    return {name: float(value) for name, value in found}


# Changes


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_acls_are_created_described_and_deleted(
    cluster: Cluster, client: Client, /, version: int
) -> None:
    bindings = [(CLICKS, allow()), (CLICKS, allow("User:*")), (C, allow("User:bob"))]
    results = await create(client, *bindings, version=version)
    assert [(each.error_code, each.error_message) for each in results] == [(0, None)] * 3
    assert await described(client, version=version) == set(bindings)
    assert may_read(cluster, "clicks")
    wanted = AclFilter(name="clicks", principal="User:*")
    assert removed(await delete(client, wanted, version=version)) == [
        [("clicks", "User:*", Operation.READ)]
    ]
    assert await described(client, version=version) == {bindings[0], bindings[2]}


async def test_the_first_version_has_literal_patterns_alone(_: Cluster, client: Client, /) -> None:
    literal = AclFilter(kind=PatternType.LITERAL)
    await add(client, (C, allow("User:bob")))
    await create(client, (CLICKS, allow()), version=0)
    assert await described(client, literal, version=0) == {(CLICKS, allow())}
    assert removed(await delete(client, literal, version=0)) == [
        [("clicks", "User:alice", Operation.READ)]
    ]
    assert await described(client) == {(C, allow("User:bob"))}


async def test_acls_are_stored_as_kafka_stores_them(cluster: Cluster, client: Client, /) -> None:
    await add(client, (CLICKS, allow()), (C, allow("User:bob")))
    words = {"permissionType": "Allow", "operation": "Read", "host": "*"}
    assert await stored(cluster, "/kafka-acl/Topic/clicks") == {
        "version": 1,
        "acls": [{"principal": "User:alice", **words}],
    }
    assert await stored(cluster, "/kafka-acl-extended/prefixed/Topic/c") == {
        "version": 1,
        "acls": [{"principal": "User:bob", **words}],
    }
    zk = cluster.zks[1]
    (notice,) = await zk.children("/kafka-acl-changes")
    assert notice == "acl_changes_0000000000"
    assert (await zk.get(f"/kafka-acl-changes/{notice}")).data == b"TOPIC:clicks"
    (extended,) = await zk.children("/kafka-acl-extended-changes")
    assert (await stored(cluster, f"/kafka-acl-extended-changes/{extended}"))["name"] == "c"
    types = ["Cluster", "DelegationToken", "Group", "Topic", "TransactionalId", "User"]
    assert await zk.children("/kafka-acl") == types
    assert await zk.children("/kafka-acl-extended/prefixed") == types


async def test_to_create_what_there_is_changes_and_tells_nothing(
    cluster: Cluster, client: Client, /
) -> None:
    await add(client, (CLICKS, allow()))
    version = acls_of(cluster).table.version
    await add(client, (CLICKS, allow()), (CLICKS, allow()))
    assert acls_of(cluster).table.version == version
    assert len(await cluster.zks[1].children("/kafka-acl-changes")) == 1


async def test_one_of_several_acls_is_deleted_and_the_others_stay(
    cluster: Cluster, client: Client, /
) -> None:
    """CVE-2024-27309."""
    three = [(CLICKS, allow(f"User:{name}")) for name in ("alice", "bob", "carol")]
    await add(client, *three)
    await delete(client, AclFilter(principal="User:bob"))
    assert await described(client) == {three[0], three[2]}
    names = [
        each["principal"] for each in (await stored(cluster, "/kafka-acl/Topic/clicks"))["acls"]
    ]
    assert names == ["User:alice", "User:carol"]


async def test_the_last_acl_takes_the_znode_with_it(cluster: Cluster, client: Client, /) -> None:
    await add(client, (CLICKS, allow()), (C, allow()))
    await delete(client, AclFilter())
    assert await cluster.zks[1].children("/kafka-acl/Topic") == []
    assert await cluster.zks[1].children("/kafka-acl-extended/prefixed/Topic") == []
    assert await described(client) == set()


async def test_an_acl_is_told_with_the_first_filter_that_it_matches(
    _: Cluster, client: Client, /
) -> None:
    await add(client, (CLICKS, allow()), (CLICKS, allow("User:bob")))
    results = await delete(client, AclFilter(principal="User:bob"), AclFilter(), AclFilter())
    assert removed(results) == [
        [("clicks", "User:bob", Operation.READ)],
        [("clicks", "User:alice", Operation.READ)],
        [],
    ]


async def test_each_acl_of_a_request_succeeds_or_fails_by_itself(
    _: Cluster, client: Client, /
) -> None:
    bad = [
        Pattern(ResourceType.CLUSTER, "mine", PatternType.LITERAL),
        topic("a/b"),
        topic(""),
        topic("a", PatternType.MATCH),
    ]
    results = await create(
        client, (bad[0], allow()), (CLICKS, allow()), *((each, allow()) for each in bad[1:])
    )
    wrong = Error.INVALID_REQUEST
    assert [each.error_code for each in results] == [wrong, 0, wrong, wrong, wrong]
    assert await described(client) == {(CLICKS, allow())}


async def test_a_filter_with_an_unknown_word_is_refused_by_itself(
    _: Cluster, client: Client, /
) -> None:
    unknown = AclFilter(operation=Operation.UNKNOWN)
    await add(client, (CLICKS, allow()))
    results = await delete(client, unknown, AclFilter(name="clicks"))
    assert [each.error_code for each in results] == [Error.INVALID_REQUEST, Error.NONE]
    assert (await describe(client, unknown)).error_code == Error.INVALID_REQUEST


async def test_an_address_is_stored_as_java_writes_it_and_found_in_any_spelling(
    _: Cluster, client: Client, /
) -> None:
    await add(client, (CLICKS, allow(host="::1")))
    assert await described(client) == {(CLICKS, allow(host="0:0:0:0:0:0:0:1"))}
    (found,) = removed(await delete(client, AclFilter(host="::1")))
    assert len(found) == 1


async def test_a_change_is_logged_with_who_made_it_and_from_where(
    _: Cluster, client: Client, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kdist.broker.handlers.acls"):
        await add(client, (CLICKS, allow()))
        await delete(client, AclFilter())
    lines = [each.message for each in caplog.records if each.name == "kdist.broker.handlers.acls"]
    acl = "Topic:LITERAL:'clicks': Allow 'User:alice' from '*' Read"
    assert [line.split(" from ", 1)[0] for line in lines] == ["'User:ANONYMOUS'"] * 2
    assert [
        line.endswith(f"{verb} the ACL of {acl}")
        for verb, line in zip(("added", "removed"), lines, strict=True)
    ] == [True] * 2


# Other brokers


@of_two
async def test_every_broker_follows_a_change(
    cluster: Cluster, client: Client, other: Client, /
) -> None:
    await add(client, (CLICKS, allow()), (C, allow("User:bob")))
    everything = {(CLICKS, allow()), (C, allow("User:bob"))}
    await cluster.until(lambda: set(acls_of(cluster, 2).table.bindings()) == everything)
    await delete(other, AclFilter(name="clicks"))
    await cluster.until(lambda: not may_read(cluster, "clicks"))
    await cluster.started(3)
    assert set(acls_of(cluster, 3).table.bindings()) == {(C, allow("User:bob"))}


@of_two
async def test_what_was_just_created_by_another_broker_can_be_deleted(
    cluster: Cluster, client: Client, other: Client, /
) -> None:
    """KAFKA-9386."""
    exact = AclFilter(ResourceType.TOPIC, "clicks", PatternType.LITERAL)
    for wanted in (exact, AclFilter(ResourceType.TOPIC, "clicks", PatternType.MATCH)):
        cluster.ensemble.lag("memory", 50)
        await add(client, (CLICKS, allow()))
        assert len(removed(await delete(other, wanted))[0]) == 1
        assert await stored_types(cluster) == []


async def stored_types(cluster: Cluster) -> list[str]:
    await cluster.zks[1].sync("/")
    return await cluster.zks[1].children("/kafka-acl/Topic")


@of_two
async def test_no_change_of_two_made_at_once_is_lost(
    cluster: Cluster, client: Client, other: Client, /
) -> None:
    """KAFKA-3328, KAFKA-7255: also where there was no ACL before."""
    names = [f"User:{number}" for number in range(10)]
    for round_ in ("clicks", "views"):
        await asyncio.gather(
            *(
                add((client, other)[number % 2], (topic(round_), allow(name)))
                for number, name in enumerate(names)
            )
        )
        found = await stored(cluster, f"/kafka-acl/Topic/{round_}")
        assert {each["principal"] for each in found["acls"]} == set(names)
    await asyncio.gather(
        *(
            delete((client, other)[number % 2], AclFilter(principal=name))
            for number, name in enumerate(names[1:])
        )
    )
    left = {(topic(name), allow("User:0")) for name in ("clicks", "views")}
    for broker in (1, 2):
        await cluster.until(
            lambda broker=broker: set(acls_of(cluster, broker).table.bindings()) == left
        )


@of_two
async def test_hundreds_of_changes_are_followed_as_fast_as_they_are_made(
    cluster: Cluster, client: Client, _: Client, /
) -> None:
    await add(client, *((topic(f"t{number}"), allow()) for number in range(300)))
    made_s = cluster.loop.time()
    await cluster.until(lambda: len(acls_of(cluster, 2).table.patterns()) == 300)
    assert cluster.loop.time() - made_s < 0.2


# ZooKeeper


@of_two
async def test_the_last_acls_stay_while_zookeeper_is_lost_and_all_are_read_again_after(
    cluster: Cluster, client: Client, other: Client, /
) -> None:
    """Also those of which no notification is left, as after more than 15 minutes."""
    await add(client, (CLICKS, allow()), (topic("gone"), allow()))
    zk = cluster.zks[1]
    assert metrics(cluster)["kdist_acl_current"] == 1
    cluster.ensemble.suspend(zk)
    await delete(other, AclFilter(name="gone"))
    await add(other, (C, allow("User:bob")))
    for parent in ("/kafka-acl-changes", "/kafka-acl-extended-changes"):
        for name in await cluster.zks[2].children(parent):
            await cluster.zks[2].delete(f"{parent}/{name}")
    assert may_read(cluster, "gone")
    assert metrics(cluster)["kdist_acl_current"] == 0
    cluster.ensemble.expire(zk)
    cluster.ensemble.resume(zk)
    everything = {(CLICKS, allow()), (C, allow("User:bob"))}
    await cluster.until(lambda: set(acls_of(cluster).table.bindings()) == everything)
    await cluster.until(lambda: metrics(cluster)["kdist_acl_current"] == 1)


async def test_a_right_that_is_revoked_while_a_broker_recovers_its_logs_is_gone(
    cluster: Cluster, client: Client, /
) -> None:
    """Also if that takes so long that no notification is left."""
    await add(client, (CLICKS, allow()))
    broker = cluster.broker(2)
    open_logs = broker._open_logs

    async def open_slowly(directory: LogDirectory) -> None:
        assert may_read(cluster, "clicks", 2)
        await delete(client, AclFilter(name="clicks"))
        await asyncio.sleep(16 * 60)
        await add(await cluster.client(1), (topic("views"), allow()))
        await asyncio.sleep(1)
        assert len(await cluster.zks[1].children("/kafka-acl-changes")) == 1
        await open_logs(directory)

    broker._open_logs = open_slowly  # type: ignore[method-assign]
    await broker.start()
    await cluster.until(lambda: not may_read(cluster, "clicks", 2))


async def test_a_change_while_zookeeper_is_lost_times_out(
    cluster: Cluster, client: Client, /
) -> None:
    await add(client, (CLICKS, allow()))
    cluster.ensemble.suspend(cluster.zks[1])
    (result,) = await create(client, (CLICKS, allow("User:bob")))
    assert result.error_code == Error.REQUEST_TIMED_OUT
    (deleted,) = await delete(client, AclFilter())
    assert deleted.error_code == Error.REQUEST_TIMED_OUT
    assert await described(client) == {(CLICKS, allow())}


@of_two
async def test_a_change_that_could_not_be_read_is_read_later_and_the_metric_says_so(
    cluster: Cluster, _: Client, other: Client, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk, failures = cluster.zks[1], 1

    async def get_many(paths: Sequence[str]) -> list[Znode | None]:
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionLoss
        return await type(zk).get_many(zk, paths)

    monkeypatch.setattr(zk, "get_many", get_many)
    await add(other, (CLICKS, allow()))
    await cluster.until(lambda: not failures)
    await asyncio.sleep(1)
    assert not may_read(cluster, "clicks")
    assert metrics(cluster)["kdist_acl_current"] == 0
    await cluster.until(lambda: may_read(cluster, "clicks"))
    await cluster.until(lambda: metrics(cluster)["kdist_acl_current"] == 1)


async def test_acls_that_cannot_be_read_close_what_they_are_of(
    cluster: Cluster, client: Client, /
) -> None:
    everybody = (topic("*"), allow("User:*"))
    await add(client, everybody, (CLICKS, allow()))
    zk = cluster.zks[1]
    await zk.set("/kafka-acl/Topic/clicks", b'{"version":2}')
    await zk.create("/kafka-acl-changes/acl_changes_", b"TOPIC:clicks", sequential=True)
    await cluster.until(lambda: not may_read(cluster, "clicks"))
    assert may_read(cluster, "views")
    assert metrics(cluster)["kdist_acl_unreadable"] == 1
    (result,) = await create(client, (CLICKS, allow()))
    assert result.error_code == Error.UNKNOWN_SERVER_ERROR
    assert "/kafka-acl/Topic/clicks" in str(result.error_message)
    by_name, others = await delete(client, AclFilter(name="clicks"), AclFilter(name="*"))
    assert (by_name.error_code, others.error_code) == (Error.UNKNOWN_SERVER_ERROR, Error.NONE)
    await zk.delete("/kafka-acl/Topic/clicks")
    await zk.create("/kafka-acl-changes/acl_changes_", b"TOPIC:clicks", sequential=True)
    await cluster.until(lambda: metrics(cluster)["kdist_acl_unreadable"] == 0)


async def test_words_of_a_newer_broker_stay_and_stop_nothing(
    cluster: Cluster, client: Client, /
) -> None:
    """KAFKA-7216: neither a type nor an operation that is not known."""
    zk = cluster.zks[1]
    entry = {"principal": "User:alice", "permissionType": "Allow", "host": "*"}
    newer = json.dumps({"version": 1, "acls": [entry | {"operation": "TwoPhaseCommit"}]}).encode()
    await zk.create("/kafka-acl/Galaxy/m31", newer, make_parents=True)
    await zk.create("/kafka-acl/Topic/clicks", newer)
    for notice in (b"GALAXY:m31", b"nothing", b"TOPIC:clicks"):
        await zk.create("/kafka-acl-changes/acl_changes_", notice, sequential=True)
    await cluster.until(lambda: len(set(acls_of(cluster).table.bindings())) == 1)
    (result,) = await create(client, (CLICKS, allow()))
    assert result.error_code == Error.UNKNOWN_SERVER_ERROR
    assert (await zk.get("/kafka-acl/Topic/clicks")).data == newer
    await cluster.started(2)
    assert not may_read(cluster, "clicks", 2)


async def test_more_acls_of_one_name_than_a_znode_holds_are_refused(
    cluster: Cluster, client: Client, /
) -> None:
    many = [(CLICKS, allow(f"User:{number:0>200}")) for number in range(5_000)]
    results = await create(client, *many)
    assert {each.error_code for each in results} == {Error.INVALID_REQUEST}
    assert await stored_types(cluster) == []


async def test_old_notifications_are_removed(cluster: Cluster, client: Client, /) -> None:
    await add(client, (CLICKS, allow()))
    await asyncio.sleep(16 * 60)
    await add(await cluster.client(), (CLICKS, allow("User:bob")))
    zk = cluster.zks[1]
    for _ in range(100):
        if len(await zk.children("/kafka-acl-changes")) == 1:
            break
        await asyncio.sleep(0.1)
    assert await zk.children("/kafka-acl-changes") == ["acl_changes_0000000001"]


async def test_other_work_goes_on_while_thousands_of_acls_are_described(
    cluster: Cluster, client: Client, /
) -> None:
    """Of what changes meanwhile, either state may be told."""
    table = acls_of(cluster).table
    for number in range(3_000):
        table.set(topic(f"t{number}"), [allow()])
    handler = AclsHandler(acls_of(cluster))
    everything = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    describing = asyncio.ensure_future(handler.describe(everything))
    for turn in range(4):
        await asyncio.sleep(0)
        assert not describing.done()
        table.set(topic(f"t{2_999 - turn}"), ())
    assert len((await describing).resources) == 2_996
    assert len(await described(client)) == 2_996


# Without an authorizer


@pytest.mark.played(by=plain)
async def test_without_an_authorizer_there_are_no_acls(cluster: Cluster, client: Client, /) -> None:
    disabled = Error.SECURITY_DISABLED
    assert (await describe(client)).error_code == disabled
    assert [each.error_code for each in await create(client, (CLICKS, allow()))] == [disabled]
    assert [each.error_code for each in await delete(client, AclFilter())] == [disabled]
    assert await cluster.zks[1].exists("/kafka-acl") is None
    assert metrics(cluster) == {}


@pytest.mark.played(by=plain)
async def test_super_users_are_read_from_the_settings(cluster: Cluster, _: Client, /) -> None:
    users = {"super.users": "User:CN=b1,O=x; User:boss;User:ANONYMOUS"}
    await cluster.started(2, **AUTHORIZER | users)
    await add(await cluster.client(2), (topic("*"), allow()._replace(permission=Permission.DENY)))
    table = acls_of(cluster, 2).table
    for name, is_allowed in (("boss", True), ("CN=b1,O=x", True), ("alice", False)):
        who = Principal("User", name)
        asked = (who, "::1", Operation.READ, ResourceType.TOPIC, "t")
        assert table.permits(*asked) == is_allowed
    with pytest.raises(UserError, match=r"super\.users"):
        cluster.broker(3, **AUTHORIZER | {"super.users": "boss"})
