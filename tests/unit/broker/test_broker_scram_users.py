"""Users' SCRAM credentials: described, altered, stored and followed, in virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kdist.broker.authentication import Mechanism
from kdist.broker.stored_users import StoredUsers
from kdist.errors import Error
from kdist.model import Principal
from kdist.network.client import Client
from kdist.protocol.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramDeletion,
    ScramUpsertion,
)
from kdist.protocol.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kdist.security.scram import (
    ScramClient,
    ScramLogin,
    format_credential,
    new_credential,
    salt_password,
)
from kdist.zk.client import ZooKeeper
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_gates import Gated
from tests.unit.broker.broker_quotas import PRODUCE, quotas, set_
from tests.unit.broker.broker_rights import newest

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
ODD = "etl of Zürich ~/*+%<1>"
ODD_NODE = "etl%20of%20Z%C3%BCrich%20%7E%2F%2A%2B%25%3C1%3E"
IN_CLEAR = {"scram.alter.over.clear.enable": "true"}
SALT = b"a salt"


def told(scenario: Callable[[Cluster, Client], Any], settings: Any = IN_CLEAR) -> None:
    cluster = Cluster(settings=settings)

    async def run() -> None:
        await cluster.started()
        await scenario(cluster, await cluster.client())

    cluster.run(run())


pytestmark = pytest.mark.played(by=told)


def upsert(name: str, password: str = "secret", mechanism: int = 1, iterations: int = 4096) -> Any:
    hashed = salt_password(SHA_512 if mechanism == 2 else SHA_256, password, SALT, 4096)
    return ScramUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=SALT,
        salted_password=hashed,
    )


def delete(name: str, mechanism: int = 1) -> ScramDeletion:
    return ScramDeletion(name=name, mechanism=mechanism)


async def alter(client: Client, *changes: Any) -> dict[str, int]:
    """The error code of each user."""
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramUpsertion)],
    )
    answer = await client.send(request, 0)
    return {each.user: each.error_code for each in answer.results}


async def described(client: Client, *names: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
    """The user, error, and mechanisms with iterations."""
    users = [UserName(name=name) for name in names] or None
    answer = await client.send(DescribeUserScramCredentialsRequest(users=users), 0)
    assert answer.error_code == Error.NONE
    return [
        (each.user, each.error_code, [(i.mechanism, i.iterations) for i in each.credential_infos])
        for each in answer.results
    ]


async def stored(zk: ZooKeeper, node: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((await zk.get(f"/config/users/{node}")).data)["config"]
    return found


async def store(zk: ZooKeeper, node: str, **settings: str) -> None:
    data = json.dumps({"version": 1, "config": settings}).encode()
    await zk.create(f"/config/users/{node}", data)


def users_of(cluster: Cluster, broker: int = 1) -> StoredUsers:
    return cluster.brokers[broker]._users


# What is asked of a broker


async def test_credentials_are_set_described_and_deleted(_: Cluster, client: Client, /) -> None:
    assert await alter(client, upsert("bob"), upsert("alice", mechanism=2, iterations=8192)) == {
        "alice": 0,
        "bob": 0,
    }
    assert await alter(client, upsert("bob", mechanism=2)) == {"bob": 0}
    alice, bob = ("alice", 0, [(2, 8192)]), ("bob", 0, [(1, 4096), (2, 4096)])
    assert await described(client) == [alice, bob]
    assert await described(client, "bob") == [bob]
    assert await alter(client, delete("bob"), delete("alice", 2)) == {"alice": 0, "bob": 0}
    assert await described(client) == [("bob", 0, [(2, 4096)])]


async def test_a_credential_is_stored_as_kafka_stores_it_beside_the_users_quotas(
    cluster: Cluster, client: Client, /
) -> None:
    zk = cluster.zks[1]
    await store(zk, ODD_NODE, producer_byte_rate="1024")
    await alter(client, upsert(ODD))
    text = format_credential(new_credential(SHA_256, "secret", SALT))
    assert await stored(zk, ODD_NODE) == {"producer_byte_rate": "1024", SHA_256: text}
    (change,) = await zk.children("/config/changes")
    told = json.loads((await zk.get(f"/config/changes/{change}")).data)
    assert told == {"version": 2, "entity_path": f"users/{ODD_NODE}"}
    assert await described(client, ODD) == [(ODD, 0, [(1, 4096)])]
    await alter(client, delete(ODD))
    assert await stored(zk, ODD_NODE) == {"producer_byte_rate": "1024"}
    assert await described(client) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([upsert("")], Error.UNACCEPTABLE_CREDENTIAL),
        ([delete("")], Error.UNACCEPTABLE_CREDENTIAL),
        ([upsert("..")], Error.UNACCEPTABLE_CREDENTIAL),
        ([upsert("<default>")], Error.UNACCEPTABLE_CREDENTIAL),
        ([upsert("bob", iterations=4095)], Error.UNACCEPTABLE_CREDENTIAL),
        ([upsert("bob", iterations=16_385)], Error.UNACCEPTABLE_CREDENTIAL),
        ([upsert("bob", iterations=16_384)], Error.NONE),
        ([upsert("bob", mechanism=0)], Error.UNSUPPORTED_SASL_MECHANISM),
        ([upsert("bob", mechanism=3)], Error.UNSUPPORTED_SASL_MECHANISM),
        ([delete("bob", 3)], Error.UNSUPPORTED_SASL_MECHANISM),
        ([upsert("bob"), upsert("bob")], Error.DUPLICATE_RESOURCE),
        ([upsert("bob"), delete("bob")], Error.DUPLICATE_RESOURCE),
        ([delete("bob")], Error.RESOURCE_NOT_FOUND),
        ([upsert("bob"), delete("bob", 2)], Error.RESOURCE_NOT_FOUND),
        ([upsert("bob"), upsert("bob", mechanism=2, iterations=1)], Error.UNACCEPTABLE_CREDENTIAL),
        ([upsert("bob"), upsert("bob", mechanism=2)], Error.NONE),
    ],
)
async def test_a_users_changes_are_made_together_or_not_at_all_and_others_are_made(
    _: Cluster, client: Client, /, changes: list[Any], error: Error
) -> None:
    answer = await alter(client, *changes, upsert("other"))
    assert answer == {changes[0].name: error, "other": Error.NONE}
    names = {name for name, _, _ in await described(client)}
    assert names == {"other"} | ({changes[0].name} if error is Error.NONE else set())


async def test_users_that_do_not_exist_or_are_named_twice_are_described_as_errors(
    _: Cluster, client: Client, /
) -> None:
    await alter(client, upsert("bob"))
    assert await described(client, "bob", "nobody", "bob", "", "<default>") == [
        ("", Error.RESOURCE_NOT_FOUND, []),
        ("<default>", Error.RESOURCE_NOT_FOUND, []),
        ("bob", Error.DUPLICATE_RESOURCE, []),
        ("nobody", Error.RESOURCE_NOT_FOUND, []),
    ]


@pytest.mark.played(by=told, settings={})
async def test_salted_passwords_are_not_taken_in_clear_unless_a_setting_allows_it(
    cluster: Cluster, client: Client, /
) -> None:
    assert await alter(client, upsert("bob"), delete("alice")) == {
        "alice": Error.POLICY_VIOLATION,
        "bob": Error.POLICY_VIOLATION,
    }
    await store(cluster.zks[1], "bob", **{SHA_256: "no matter"})
    assert await alter(client, delete("bob")) == {"bob": Error.NONE}


async def test_only_the_controller_alters(cluster: Cluster) -> None:
    await cluster.started(1)
    await cluster.started(2)
    controller = next(i for i, each in cluster.brokers.items() if each.service.controller.is_active)
    other = await cluster.client(3 - controller)
    assert await alter(other, delete("bob")) == {"bob": Error.NOT_CONTROLLER}
    assert await alter(await cluster.client(controller), delete("bob")) == {
        "bob": Error.RESOURCE_NOT_FOUND
    }


async def test_a_description_while_zookeeper_is_lost_times_out(
    cluster: Cluster, client: Client, /
) -> None:
    cluster.ensemble.suspend(cluster.zks[1])
    answer = await client.send(DescribeUserScramCredentialsRequest(users=None), 0)
    assert answer.error_code == Error.REQUEST_TIMED_OUT


async def test_quotas_of_clients_are_untouched_by_users_of_their_names(
    _: Cluster, client: Client, /
) -> None:
    await set_(client, "bob", **{PRODUCE: 5.0})
    await alter(client, upsert("bob"))
    assert await quotas(client) == {"bob": {PRODUCE: 5.0}}


# What a broker follows


def follow(scenario: Callable[[Cluster], Any]) -> None:
    cluster = Cluster(settings=IN_CLEAR)

    async def run() -> None:
        await cluster.started(1)
        await cluster.started(2)
        await scenario(cluster)

    cluster.run(run())


following = pytest.mark.played(by=follow)


async def controllers_client(cluster: Cluster) -> Client:
    active = next(i for i, each in cluster.brokers.items() if each.service.controller.is_active)
    return await cluster.client(active)


@following
async def test_every_broker_follows_users_and_reads_all_at_its_start(cluster: Cluster, /) -> None:
    client = await controllers_client(cluster)
    await alter(client, upsert(ODD))
    for broker in (1, 2):
        users = users_of(cluster, broker)
        await cluster.until(lambda users=users: users.credential(SHA_256, ODD))
    expected = new_credential(SHA_256, "secret", SALT)
    assert users_of(cluster, 2).credential(SHA_256, ODD) == expected
    assert users_of(cluster, 2).credential(SHA_512, ODD) is None
    await cluster.started(3)
    assert users_of(cluster, 3).credential(SHA_256, ODD) == expected


@following
async def test_a_removed_credential_is_told_on_each_broker_and_a_new_password_is_not(
    cluster: Cluster, /
) -> None:
    heard: list[tuple[int, str, str]] = []
    for broker in (1, 2):
        users_of(cluster, broker).on_removed.append(
            lambda mechanism, name, broker=broker: heard.append((broker, mechanism, name))
        )
    client = await controllers_client(cluster)
    await alter(client, upsert("bob"), upsert("bob", mechanism=2))
    await alter(client, upsert("bob", "another"))
    expected = new_credential(SHA_256, "another", SALT)
    for broker in (1, 2):
        users = users_of(cluster, broker)
        await cluster.until(lambda users=users: users.credential(SHA_256, "bob") == expected)
    assert heard == []
    await alter(client, delete("bob"))
    await cluster.until(lambda: len(heard) == 2)
    assert sorted(heard) == [(1, SHA_256, "bob"), (2, SHA_256, "bob")]


@following
async def test_a_credential_that_was_removed_while_zookeeper_was_lost_is_told_after(
    cluster: Cluster, /
) -> None:
    client = await controllers_client(cluster)
    await alter(client, upsert("bob"), upsert("alice"))
    away = 2 if cluster.brokers[1].service.controller.is_active else 1
    users, zk = users_of(cluster, away), cluster.zks[away]
    await cluster.until(lambda: users.credential(SHA_256, "bob"))
    heard: list[tuple[str, str]] = []
    users.on_removed.append(lambda mechanism, name: heard.append((mechanism, name)))
    cluster.ensemble.suspend(zk)
    await alter(client, delete("bob"))
    other = cluster.zks[3 - away]
    for name in await other.children("/config/changes"):
        await other.delete(f"/config/changes/{name}")
    assert users.credential(SHA_256, "bob")  # the last that is known
    cluster.ensemble.expire(zk)
    cluster.ensemble.resume(zk)
    await cluster.until(lambda: heard)
    assert heard == [(SHA_256, "bob")]
    assert users.credential(SHA_256, "alice")


@following
async def test_all_brokers_make_up_the_same_salt_for_a_name_without_credential(
    cluster: Cluster, /
) -> None:
    def salt(broker: int, name: str) -> bytes:
        first, _ = users_of(cluster, broker).begin(SHA_256).respond(f"n,,n={name},r=abc".encode())
        return first.split(b",")[1]

    assert salt(1, "nobody") == salt(2, "nobody") != salt(1, "somebody")
    secret, _ = await cluster.zks[1].get("/kdist/secrets/scram")
    assert len(secret) == 44
    begun = [users_of(cluster).begin(SHA_256)._nonce for _ in range(9)]
    assert len(set(begun)) == 9
    await cluster.started(3)
    assert salt(3, "nobody") == salt(1, "nobody")


async def test_a_credential_that_cannot_be_read_is_ignored_and_not_logged(
    cluster: Cluster, client: Client, /, caplog: pytest.LogCaptureFixture
) -> None:
    zk = cluster.zks[1]
    good = format_credential(new_credential(SHA_512, "secret", SALT))
    await store(zk, "bob", **{SHA_256: "salt=hunter2,iterations=many", SHA_512: good})
    await zk.create("/config/users/eve", b'hunter2{"version":1,"config":{"SCRAM-SHA-256":"')
    await zk.create("/config/users/%3Cdefault%3E", b"hunter2")
    await store(zk, "<default>", **{SHA_256: good})
    users = users_of(cluster)
    await users.reload_all()
    assert users.credential(SHA_256, "bob") is None
    assert users.credential(SHA_512, "bob") is not None
    assert users.credential(SHA_256, "<default>") is None
    assert [(name, code) for name, code, _ in await described(client)] == [
        ("bob", Error.UNKNOWN_SERVER_ERROR)
    ]
    assert any("credential of user 'bob'" in each for each in caplog.messages)
    assert "hunter2" not in caplog.text


async def test_whoever_alters_credentials_cannot_forge_a_line_of_the_log(
    cluster: Cluster, _: Client, /, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client()
    await asyncio.sleep(0.1)
    newest(cluster.brokers[1]).principal = Principal("User", "eve\nall is well")
    with caplog.at_level(logging.INFO):
        await alter(client, upsert("bob"))
    (line,) = [each for each in caplog.messages if "has altered" in each]
    assert line.startswith(r"'User:eve\nall is well' from ")


async def test_a_user_whose_znode_is_gone_has_no_credential(
    cluster: Cluster, client: Client, /
) -> None:
    heard: list[tuple[str, str]] = []
    users = users_of(cluster)
    users.on_removed.append(lambda mechanism, name: heard.append((mechanism, name)))
    await alter(client, upsert("bob"), upsert("alice"))
    await cluster.zks[1].delete("/config/users/bob")
    await users.reload_all()
    assert heard == [(SHA_256, "bob")]
    assert users.credential(SHA_256, "bob") is None
    assert users.credential(SHA_256, "alice")


async def test_notifications_of_other_entities_of_a_user_are_no_users(
    cluster: Cluster, _: Client, /
) -> None:
    users = users_of(cluster)
    await users.reload("bob/clients/etl", "<default>", "%3Cdefault%3E")
    assert not users._credentials


# Through the gate


def gated(scenario: Callable[[Gated], Any]) -> None:
    users: list[StoredUsers] = []
    cluster = Gated({SHA_512: Mechanism(lambda: users[0].begin(SHA_512))})
    cluster.settings |= IN_CLEAR

    async def run() -> None:
        await cluster.opened()
        users.append(users_of(cluster))
        users[0].on_removed.append(cluster.gate.disconnect)
        await scenario(cluster)

    cluster.run(run())


async def error_of(cluster: Gated, name: str, password: str) -> tuple[Any, int]:
    """The peer, and the error code of its proof."""
    peer = await cluster.peer()
    await peer.handshake(SHA_512)
    exchange = ScramClient(ScramLogin(SHA_512, name, password), "a-nonce-of-the-client")
    message = exchange.respond(None)
    while message is not None:
        answer = await peer.say(message.decode())
        if answer.error_code:
            return peer, answer.error_code
        message = exchange.respond(answer.auth_bytes)
    return peer, 0


@pytest.mark.played(by=gated)
async def test_a_user_gets_in_until_its_credential_is_deleted(cluster: Gated, /) -> None:
    client = await cluster.client()
    assert (await error_of(cluster, ODD, "secret"))[1] == Error.SASL_AUTHENTICATION_FAILED
    await alter(client, upsert(ODD, mechanism=2))
    peer, error = await error_of(cluster, ODD, "secret")
    assert error == Error.NONE
    assert (await error_of(cluster, ODD, "Secret"))[1] == Error.SASL_AUTHENTICATION_FAILED
    await alter(client, upsert(ODD, "another", mechanism=2))
    assert await peer.is_served()
    assert (await error_of(cluster, ODD, "secret"))[1] == Error.SASL_AUTHENTICATION_FAILED
    await alter(client, delete(ODD, 2))
    await cluster.until(lambda: peer.is_closed)
    assert (await error_of(cluster, ODD, "another"))[1] == Error.SASL_AUTHENTICATION_FAILED
