"""DescribeClientQuotas and AlterClientQuotas, asked of brokers in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kdist.broker.quotas import Quotas
from kdist.broker.stored_quotas import Entity
from kdist.errors import Error
from kdist.network.client import Client
from kdist.protocol.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    QuotaChange,
)
from kdist.protocol.describe_client_quotas import (
    ANY,
    CLIENT_ID,
    DEFAULT,
    EXACT,
    IP,
    USER,
    QuotaEntity,
    QuotaFilter,
)
from tests.simulator.cluster import Cluster
from tests.unit.broker.broker_quotas import (
    FETCH,
    PRODUCE,
    REQUEST,
    ask,
    change,
    entities,
    named,
    quotas,
    set_,
)

ODD = "etl of Zürich ~/*+%<1>"


def in_force(cluster: Cluster, broker: int = 1) -> dict[str | None, dict[str, float]]:
    """The quotas of clients, whichever their users."""
    kept: Quotas = cluster.brokers[broker]._quotas.quotas
    return {each.client_id: dict(kept.limits[each]) for each in kept.limits if each.user is None}


def told(scenario: Callable[[Cluster, Client], Any]) -> None:
    """Run a scenario with one broker, and a client of it that has no quota."""
    cluster = Cluster()

    async def run() -> None:
        await cluster.started()
        await scenario(cluster, await named(cluster, "admin"))

    cluster.run(run())


pytestmark = pytest.mark.played(by=told)


@pytest.mark.parametrize("version", [0, 1])
async def test_quotas_are_set_and_described(_: Cluster, client: Client, /, version: int) -> None:
    values = {PRODUCE: 1024.0, FETCH: 2e9, REQUEST: 12.5}
    for name in ("etl", None):
        result = await change(client, name, version=version, **values)
        assert (result.error_code, result.error_message) == (0, None)
        assert result.entity == [QuotaEntity(entity_type=CLIENT_ID, entity_name=name)]
    assert await quotas(client, version=version) == {"etl": values, None: values}


async def test_quotas_are_stored_as_kafka_stores_them(cluster: Cluster, client: Client, /) -> None:
    await set_(client, ODD, **{PRODUCE: 1024.0, REQUEST: 50.0})
    await set_(client, None, **{FETCH: 1e18})
    zk = cluster.zks[1]
    # As Kafka's Sanitizer writes it: Java's URL encoding, with %20 and %2A.
    node = "etl%20of%20Z%C3%BCrich%20%7E%2F%2A%2B%25%3C1%3E"
    assert await zk.children("/config/clients") == ["<default>", node]
    stored = json.loads((await zk.get(f"/config/clients/{node}")).data)
    assert stored == {"version": 1, "config": {PRODUCE: "1024", REQUEST: "50.0"}}
    stored = json.loads((await zk.get("/config/clients/<default>")).data)
    assert stored == {"version": 1, "config": {FETCH: "1000000000000000000"}}
    changes = [
        json.loads((await zk.get(f"/config/changes/{each}")).data)["entity_path"]
        for each in await zk.children("/config/changes")
    ]
    assert changes == [f"clients/{node}", "clients/<default>"]
    assert await quotas(client, EXACT, ODD) == {ODD: {PRODUCE: 1024.0, REQUEST: 50.0}}


async def test_the_largest_rate_is_stored_as_the_largest_of_kafkas_integers(
    cluster: Cluster, client: Client, /
) -> None:
    largest = 2**63 - 1
    assert (await change(client, "etl", **{PRODUCE: float(largest)})).error_code == 0
    stored = json.loads((await cluster.zks[1].get("/config/clients/etl")).data)["config"]
    assert stored == {PRODUCE: str(largest)}


async def test_every_broker_follows_a_change_and_reads_all_at_its_start(cluster: Cluster) -> None:
    await cluster.started(1)
    await cluster.started(2)
    client = await named(cluster, "admin", 2)
    await set_(client, ODD, **{PRODUCE: 5.0})
    assert in_force(cluster, 2) == {ODD: {PRODUCE: 5.0}}  # before it answers
    await cluster.until(lambda: in_force(cluster, 1) == {ODD: {PRODUCE: 5.0}})
    await set_(client, None, **{FETCH: 7.0})
    everything = {ODD: {PRODUCE: 5.0}, "<default>": {FETCH: 7.0}}
    await cluster.until(lambda: in_force(cluster, 1) == everything)
    await cluster.started(3)
    assert in_force(cluster, 3) == everything
    result = await change(client, ODD, unset=(PRODUCE,))
    assert result.error_code == 0
    await cluster.until(lambda: in_force(cluster, 1) == {"<default>": {FETCH: 7.0}})
    assert await quotas(client) == {None: {FETCH: 7.0}}


async def test_the_last_known_quotas_stay_while_zookeeper_is_lost_and_are_read_again_after(
    cluster: Cluster,
) -> None:
    await cluster.started(1)
    await cluster.started(2)
    client, other = await named(cluster, "admin"), await named(cluster, "admin", 2)
    await set_(client, "etl", **{PRODUCE: 5.0})
    zk = cluster.zks[1]
    cluster.ensemble.suspend(zk)
    assert in_force(cluster) == {"etl": {PRODUCE: 5.0}}
    await set_(other, "etl", **{PRODUCE: 9.0})
    for name in await cluster.zks[2].children("/config/changes"):
        await cluster.zks[2].delete(f"/config/changes/{name}")
    assert in_force(cluster) == {"etl": {PRODUCE: 5.0}}
    cluster.ensemble.expire(zk)
    cluster.ensemble.resume(zk)
    await cluster.until(lambda: in_force(cluster) == {"etl": {PRODUCE: 9.0}})


async def test_a_request_while_zookeeper_is_lost_times_out(
    cluster: Cluster, client: Client, /
) -> None:
    cluster.ensemble.suspend(cluster.zks[1])
    result = await change(client, "etl", **{PRODUCE: 5.0})
    assert result.error_code == Error.REQUEST_TIMED_OUT
    answer = await ask(client)
    assert (answer.error_code, answer.entries) == (Error.REQUEST_TIMED_OUT, None)


async def test_what_others_have_stored_wrongly_is_ignored_and_can_be_removed(
    cluster: Cluster, client: Client, /
) -> None:
    config = {PRODUCE: "fast", FETCH: "7", "connection_creation_rate": "1.0", REQUEST: "-1"}
    zk = cluster.zks[1]
    await zk.create("/config/clients/etl", json.dumps({"version": 1, "config": config}).encode())
    await zk.create("/config/clients/broken", b"{")
    # Names that mean another's, or nobody's: Kafka would not write them either.
    await zk.create("/config/clients/%3Cdefault%3E", b'{"version":1,"config":{}}')
    change_ = json.dumps({"version": 2, "entity_path": "clients/etl"}).encode()
    await zk.create("/config/changes/config_change_", change_, sequential=True)
    await cluster.until(lambda: in_force(cluster) == {"etl": {FETCH: 7.0}})
    assert await quotas(client) == {"etl": {FETCH: 7.0}}
    result = await change(client, "etl", unset=(PRODUCE, "connection_creation_rate"))
    assert result.error_code == 0, result.error_message
    stored = json.loads((await zk.get("/config/clients/etl")).data)["config"]
    assert stored == {FETCH: "7", REQUEST: "-1"}


async def test_a_trial_checks_and_changes_nothing(cluster: Cluster, client: Client, /) -> None:
    assert (await change(client, "etl", is_trial=True, **{PRODUCE: 5.0})).error_code == 0
    result = await change(client, "etl", is_trial=True, **{PRODUCE: 0.0})
    assert result.error_code == Error.INVALID_REQUEST
    assert await cluster.zks[1].children("/config/clients") == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (PRODUCE, 0.0, "producer_byte_rate is 0, and must be above 0"),
        (FETCH, -1.0, "consumer_byte_rate is -1, and must be above 0"),
        (REQUEST, float("nan"), "request_percentage is nan, and must be above 0"),
        (PRODUCE, float("inf"), "producer_byte_rate is inf, and must be above 0"),
        (REQUEST, 5e-324, "request_percentage is 4.94066e-324, and must be above 0"),
        (PRODUCE, 1.5, "producer_byte_rate is 1.5, and must be a whole number"),
        (PRODUCE, 1e19, "producer_byte_rate is 1e+19, and must be a whole number of at most"),
        ("connection_creation_rate", 1.0, "kdist has no connection_creation_rate yet"),
        ("speed", 1.0, "'speed' is not a quota: there are producer_byte_rate"),
    ],
)
async def test_an_impossible_quota_is_refused_with_the_reason(
    _: Cluster, client: Client, /, key: str, value: float, reason: str
) -> None:
    result = await change(client, "etl", **{key: value})
    assert result.error_code == Error.INVALID_REQUEST
    assert (result.error_message or "").startswith(reason)


@pytest.mark.parametrize(
    ("kind", "name", "error", "reason"),
    [
        (USER, "..", Error.INVALID_REQUEST, "no user can be named '..'"),
        (USER, "<default>", Error.INVALID_REQUEST, "no user can be named '<default>'"),
        (IP, "10.0.0.1", Error.INVALID_REQUEST, "kdist has no quotas of addresses"),
        (
            "rack",
            "a",
            Error.UNSUPPORTED_VERSION,
            "quotas are for a user or client-id, not a 'rack'",
        ),
        (CLIENT_ID, "", Error.INVALID_REQUEST, "no client-id can be named ''"),
        (CLIENT_ID, "..", Error.INVALID_REQUEST, "no client-id can be named '..'"),
        (CLIENT_ID, "<default>", Error.INVALID_REQUEST, "no client-id can be named '<default>'"),
    ],
)
async def test_an_entity_that_can_have_no_quota_is_refused_with_the_reason(
    _: Cluster, client: Client, /, kind: str, name: str, error: Error, reason: str
) -> None:
    result = await change(client, name, kind=kind, **{PRODUCE: 5.0})
    assert result.error_code == error
    assert (result.error_message or "").startswith(reason)


async def test_entities_fail_one_by_one_and_none_may_be_named_twice(
    _: Cluster, client: Client, /
) -> None:
    def entry(*entity: tuple[str, str | None], keys: tuple[str, ...] = (PRODUCE,)) -> Any:
        parts = [QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity]
        ops = [QuotaChange(key=key, value=5.0, remove=False) for key in keys]
        return AlteredQuotas(entity=parts, ops=ops)

    twice = (CLIENT_ID, "twice")
    request = AlterClientQuotasRequest(
        entries=[
            entry((CLIENT_ID, "good")),
            entry(twice),
            entry(twice),
            entry((CLIENT_ID, "a"), (IP, "10.0.0.1")),
            entry((CLIENT_ID, "a"), (CLIENT_ID, "b")),
            entry(),
            entry((CLIENT_ID, "same"), keys=(FETCH, FETCH)),
        ],
        validate_only=False,
    )
    results = (await client.send(request, 1)).entries
    assert [each.error_code for each in results] == [0, *[Error.INVALID_REQUEST] * 6]
    assert await quotas(client) == {"good": {PRODUCE: 5.0}}


@pytest.mark.parametrize(
    ("match_type", "match", "found"),
    [
        (ANY, None, {"a", "b", None}),
        (DEFAULT, None, {None}),
        (EXACT, "b", {"b"}),
        (EXACT, "nobody", set()),
        (EXACT, "<default>", set()),
    ],
)
async def test_filters_find_clients(
    _: Cluster, client: Client, /, match_type: int, match: str | None, found: set[str | None]
) -> None:
    for name in ("a", "b", None):
        await set_(client, name, **{PRODUCE: 5.0})
    assert (await quotas(client, match_type, match)).keys() == found


async def test_without_filters_all_are_described_unless_the_match_is_strict(
    _: Cluster, client: Client, /
) -> None:
    await set_(client, "a", **{PRODUCE: 5.0})
    assert len((await ask(client)).entries) == 1
    assert (await ask(client, is_strict=True)).entries == []


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("filters", [[(IP, ANY, None)], [(IP, EXACT, "10.0.0.1")]])
async def test_addresses_are_described_as_having_no_quotas(
    _: Cluster, client: Client, /, filters: list[tuple[str, int, str | None]], is_strict: bool
) -> None:
    await set_(client, "a", **{PRODUCE: 5.0})
    assert await entities(client, *filters, is_strict=is_strict) == set()


A, OF_A, ALL = ((USER, "a"),), ((USER, "a"), (CLIENT_ID, "c")), ((USER, None),)
OF_ALL, C = ((USER, None), (CLIENT_ID, None)), ((CLIENT_ID, "c"),)


@pytest.mark.parametrize(
    ("filters", "strictly", "besides"),
    [
        ([], set(), {A, OF_A, ALL, OF_ALL, C}),
        ([(USER, EXACT, "a")], {A}, {OF_A}),
        ([(USER, DEFAULT, None)], {ALL}, {OF_ALL}),
        ([(USER, ANY, None)], {A, ALL}, {OF_A, OF_ALL}),
        ([(CLIENT_ID, ANY, None)], {C}, {OF_A, OF_ALL}),
        ([(CLIENT_ID, EXACT, "c")], {C}, {OF_A}),
        ([(USER, ANY, None), (CLIENT_ID, ANY, None)], {OF_A, OF_ALL}, set()),
        ([(USER, DEFAULT, None), (CLIENT_ID, DEFAULT, None)], {OF_ALL}, set()),
        ([(USER, EXACT, "a"), (CLIENT_ID, DEFAULT, None)], set(), set()),
    ],
)
async def test_filters_find_users_and_their_clients(
    _: Cluster,
    client: Client,
    /,
    filters: list[tuple[str, int, str | None]],
    strictly: set[Any],
    besides: set[Any],
) -> None:
    for user, name in (("a", "c"), (None, None)):
        result = await change(client, name, user=(user,), **{PRODUCE: 5.0})
        assert result.error_code == 0, result.error_message
        assert (await change(client, user, kind=USER, **{PRODUCE: 5.0})).error_code == 0
    await set_(client, "c", **{PRODUCE: 5.0})
    assert await entities(client, *filters, is_strict=True) == strictly
    assert await entities(client, *filters, is_strict=False) == strictly | besides


@pytest.mark.parametrize("is_trial", [False, True])
async def test_whoever_may_alter_quotas_cannot_delete_a_credential(
    cluster: Cluster, client: Client, /, is_trial: bool
) -> None:
    zk = cluster.zks[1]
    stored = json.dumps({"version": 1, "config": {"SCRAM-SHA-256": "", PRODUCE: "7"}}).encode()
    await zk.create("/config/users/alice", stored)
    gone = (PRODUCE, "SCRAM-SHA-256")
    result = await change(client, "alice", kind=USER, unset=gone, is_trial=is_trial)
    assert result.error_code == Error.INVALID_REQUEST
    assert (await zk.get("/config/users/alice")).data == stored


async def test_quotas_of_users_are_stored_as_kafka_stores_them_beside_their_credentials(
    cluster: Cluster, client: Client, /
) -> None:
    zk = cluster.zks[1]
    credential = {"SCRAM-SHA-256": "salt=,stored_key=,server_key=,iterations=4096"}
    stored = json.dumps({"version": 1, "config": credential}).encode()
    await zk.create("/config/users/al%20ice", stored)
    for user in ("al ice", None):
        assert (await change(client, user, kind=USER, **{PRODUCE: 7.0})).error_code == 0
        assert (await change(client, ODD, user=(user,), **{FETCH: 8.0})).error_code == 0
    stored_ = json.loads((await zk.get("/config/users/al%20ice")).data)["config"]
    assert stored_ == credential | {PRODUCE: "7"}
    node = "etl%20of%20Z%C3%BCrich%20%7E%2F%2A%2B%25%3C1%3E"
    assert await zk.children("/config/users/<default>/clients") == [node]
    changes = [
        json.loads((await zk.get(f"/config/changes/{each}")).data)["entity_path"]
        for each in await zk.children("/config/changes")
    ]
    assert changes == [
        "users/al%20ice",
        f"users/al%20ice/clients/{node}",
        "users/<default>",
        f"users/<default>/clients/{node}",
    ]
    assert (await change(client, "al ice", kind=USER, unset=(PRODUCE,))).error_code == 0
    stored_ = json.loads((await zk.get("/config/users/al%20ice")).data)["config"]
    assert stored_ == credential


async def test_every_broker_follows_the_quotas_of_users_and_reads_all_at_its_start(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    def known(broker: int) -> dict[Entity, dict[str, float]]:
        kept: Quotas = cluster.brokers[broker]._quotas.quotas
        return {each: dict(limits) for each, limits in kept.limits.items()}

    await cluster.started(1)
    await cluster.started(2)
    client = await named(cluster, "admin", 2)
    await cluster.zks[1].create("/config/users/bob", b"")  # the place of his clients' alone
    await set_(client, "etl", **{PRODUCE: 1.0})
    await change(client, ODD, kind=USER, **{PRODUCE: 2.0})
    await change(client, ODD, user=(ODD,), **{PRODUCE: 3.0})
    await change(client, None, user=("bob",), **{PRODUCE: 4.0})
    everything = {
        Entity(None, "etl"): {PRODUCE: 1.0},
        Entity(ODD, None): {PRODUCE: 2.0},
        Entity(ODD, ODD): {PRODUCE: 3.0},
        Entity("bob", "<default>"): {PRODUCE: 4.0},
    }
    assert known(2) == everything
    await cluster.until(lambda: known(1) == everything)
    await cluster.started(3)
    assert known(3) == everything
    await change(client, ODD, user=(ODD,), unset=(PRODUCE,))
    await cluster.until(lambda: Entity(ODD, ODD) not in known(1))
    assert not [line for line in caplog.messages if "ignored" in line]


async def test_who_has_proven_no_name_is_the_user_anonymous(
    cluster: Cluster, client: Client, /
) -> None:
    await change(client, "ANONYMOUS", kind=USER, **{REQUEST: 0.001})
    await ask(client)
    await ask(await named(cluster, "other"))
    kept: Quotas = cluster.brokers[1]._quotas.quotas
    assert {*kept._accounts} == {Entity("ANONYMOUS", each) for each in ("admin", "other")}


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ([(USER, EXACT, None)], Error.INVALID_REQUEST),
        ([(IP, ANY, "10.0.0.1")], Error.INVALID_REQUEST),
        ([(IP, ANY, None), (CLIENT_ID, ANY, None)], Error.INVALID_REQUEST),
        ([(IP, ANY, None), (USER, ANY, None)], Error.INVALID_REQUEST),
        ([("rack", ANY, None)], Error.UNSUPPORTED_VERSION),
        ([(CLIENT_ID, ANY, None), (CLIENT_ID, DEFAULT, None)], Error.INVALID_REQUEST),
        ([(CLIENT_ID, EXACT, None)], Error.INVALID_REQUEST),
        ([(CLIENT_ID, ANY, "a")], Error.INVALID_REQUEST),
        ([(CLIENT_ID, 3, None)], Error.INVALID_REQUEST),
    ],
)
async def test_filters_that_mean_nothing_are_refused(
    _: Cluster, client: Client, /, filters: list[tuple[str, int, str | None]], error: Error
) -> None:
    given = [QuotaFilter(entity_type=k, match_type=t, match=m) for k, t, m in filters]
    answer = await ask(client, *given)
    assert (answer.error_code, answer.entries) == (error, None)
    assert answer.error_message
