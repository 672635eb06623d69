"""A request without rights changes nothing and tells nothing; what ACLs allow ends when they do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kdist.broker.authorization import SENTENCES_MAX, SENTENCES_OF_ONE_MAX, Authorizer
from kdist.broker.broker import Broker
from kdist.config.security import ACL_AUTHORIZER, AuthorizationSettings
from kdist.errors import Error, UserError
from kdist.metrics.broker import AuthorizationMetrics
from kdist.metrics.declare import Family
from kdist.model import ANONYMOUS, OFFSETS_TOPIC, Principal
from kdist.network.client import Client
from kdist.protocol import list_groups, metadata, offset_fetch
from kdist.protocol import produce as produce_api
from kdist.protocol.describe_cluster import DescribeClusterRequest
from kdist.protocol.describe_groups import DescribeGroupsRequest
from kdist.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.frame import RequestHeader, encode_request, encode_response
from kdist.protocol.init_producer_id import InitProducerIdRequest
from kdist.protocol.list_groups import ListGroupsRequest
from kdist.protocol.metadata import OMITTED, ON_TOPIC, MetadataRequest, MetadataTopic
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from kdist.protocol.versions import TABLE
from kdist.replication.partition import Partition
from kdist.security import rights
from kdist.security.acls import Operation, ResourceType
from kdist.security.subjects import ANYBODY
from kdist.testing.virtual_clock import VirtualClock
from tests.simulator.cluster import Cluster, create, produce, produce_request
from tests.unit.broker.broker_rights import (
    ALICE,
    BOB,
    SETTINGS,
    client_of,
    grant,
    newest,
    raw_of,
    started,
)
from tests.unit.security.plain_requests import plain_request

T29 = Error.TOPIC_AUTHORIZATION_FAILED
READ, WRITE, DESCRIBE, CREATE = (
    *(Operation.READ, Operation.WRITE),
    *(Operation.DESCRIBE, Operation.CREATE),
)
GROUP, CLUSTER = ResourceType.GROUP, ResourceType.CLUSTER
EVERY_VERSION = [(api, each) for api in TABLE for each in range(api.oldest, api.newest + 1)]
BUT_WRITE = [each for each in Operation if each > Operation.ALL and each is not WRITE]
PLANTED, MISSING = "planted", "missing"


async def planted(cluster: Cluster, **settings: str) -> Broker:
    """A broker with a topic that has records, and a group with an offset in it."""
    broker = await started(cluster, **settings)
    client = await cluster.client()
    await create(client, PLANTED)
    await produce(client, PLANTED, b"x")
    part = OffsetCommitPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    topics = [OffsetCommitTopic(name=PLANTED, partitions=[part])]
    answer: Any = None
    while answer is None or answer.topics[0].partitions[0].error_code:
        await client.send(FindCoordinatorRequest(key=PLANTED), 0)
        answer = await client.send(OffsetCommitRequest(group_id=PLANTED, topics=topics), 2)
    await cluster.until(lambda: OFFSETS_TOPIC in broker.service.cache.topics)
    return broker


async def state_of(cluster: Cluster, broker: Broker) -> dict[str, Any]:
    """What a request could have changed."""
    service, client = broker.service, await cluster.client()
    groups = [PLANTED, MISSING]
    asked = [OffsetFetchGroup(group_id=each, topics=None) for each in groups]
    return {
        "zookeeper": cluster.ensemble.tree.zxid,
        "topics": sorted(service.cache.topics),
        "logs": {
            key: (each.log.start_offset, each.log.end_offset)
            for key, each in service.replicas.partitions.items()
        },
        "sessions": list(service._routes.direct[1].__self__.sessions._sessions),  # type: ignore[attr-defined]
        "accounts": len(broker._quotas.quotas),
        "groups": await client.send(DescribeGroupsRequest(groups=groups), 5),
        "offsets": await client.send(OffsetFetchRequest(groups=asked), 8),
        "listed": await client.send(ListGroupsRequest(), 3),
    }


@pytest.mark.parametrize("has_other_rights", [False, True])
async def test_no_answer_tells_whether_a_name_exists_and_nothing_is_changed(
    cluster: Cluster, has_other_rights: bool
) -> None:
    broker = await planted(cluster)
    if has_other_rights:
        for on in (ResourceType.TOPIC, GROUP):
            grant(broker, *BUT_WRITE, on=on, name="granted")
    before = await state_of(cluster, broker)
    way = await raw_of(cluster)
    for api, version in EVERY_VERSION:
        answers = []
        for name in (PLANTED, MISSING):
            count = len(way.frames())
            header = RequestHeader(api.key, version, 7, "c")
            way.transport.write(encode_request(header, plain_request(api, version, name)))
            await cluster.until(lambda count=count: way.is_closed or len(way.frames()) > count)
            assert not way.is_closed, (api.name, version)
            answers.append(way.frames()[-1].replace(name.encode(), b"<name>"))
        assert answers[0] == answers[1], (api.name, version)
    assert await state_of(cluster, broker) == before


async def test_listings_leave_out_what_one_may_not_describe(cluster: Cluster) -> None:
    broker = await planted(cluster)
    grant(broker, DESCRIBE, on=GROUP, name=PLANTED)
    grant(broker, DESCRIBE, name="mine")
    admin, client = await cluster.client(), await client_of(cluster)
    await create(admin, "mine")
    for version in range(metadata.API.newest + 1):
        topics = [] if version == 0 else None
        for each, names in ((admin, {"mine", PLANTED, OFFSETS_TOPIC}), (client, {"mine"})):
            answer = await each.send(MetadataRequest(topics=topics), version)
            assert {topic.name for topic in answer.topics} == names
    for version in range(2, offset_fetch.API.newest + 1):
        request = OffsetFetchRequest(group_id=PLANTED, topics=None)
        if version >= 8:
            request = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id=PLANTED, topics=None)])
        for each, is_shown in ((admin, True), (client, False)):
            answer = encode_response(version, 1, await each.send(request, version))
            place = b"".join(answer.chunks()).count(PLANTED.encode())
            assert place == is_shown + (version >= 8)
    for version in range(list_groups.API.newest + 1):
        for principal, count in ((ALICE, 1), (BOB, 0)):
            answer = await (await client_of(cluster, principal)).send(ListGroupsRequest(), version)
            assert len(answer.groups) == count
    assert not broker.measures.authorization.keys()


async def test_authorized_operations_are_those_of_the_client(cluster: Cluster) -> None:
    broker = await planted(cluster)
    grant(broker, READ, name=PLANTED)
    grant(broker, DESCRIBE, on=GROUP, name=PLANTED)
    admin, client = await cluster.client(), await client_of(cluster)
    asked = MetadataRequest(
        topics=[MetadataTopic(name=PLANTED)], include_topic_authorized_operations=True
    )
    (of_admin,), (of_client,) = [(await each.send(asked, 12)).topics for each in (admin, client)]
    assert of_admin.topic_authorized_operations == ON_TOPIC
    assert of_client.topic_authorized_operations == 1 << READ | 1 << DESCRIBE
    group = DescribeGroupsRequest(groups=[PLANTED, MISSING], include_authorized_operations=True)
    mine, other = (await client.send(group, 5)).groups
    assert (mine.error_code, mine.authorized_operations) == (Error.NONE, 1 << DESCRIBE)
    assert (other.error_code, other.authorized_operations) == (
        Error.GROUP_AUTHORIZATION_FAILED,
        OMITTED,
    )
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (await client.send(request, 1)).cluster_authorized_operations == 0
    grant(broker, DESCRIBE, on=CLUSTER)
    assert (await client.send(request, 1)).cluster_authorized_operations == 1 << DESCRIBE


# Fetches


def fetch_request(
    offset: int = 0, session: tuple[int, int] = (0, -1), wait_ms: int = 0, replica_id: int = -1
) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        replica_id=replica_id,
        session_id=session[0],
        session_epoch=session[1],
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic="clicks", partitions=[part])],
    )


def errors_of(answer: Any) -> list[int]:
    return [each.error_code for topic in answer.responses for each in topic.partitions]


async def with_topic(cluster: Cluster, **settings: str) -> Broker:
    broker = await started(cluster, **settings)
    await create(await cluster.client(), "clicks")
    return broker


@pytest.mark.parametrize("before", [0, 3], ids=["by the general path", "by the fast path"])
@pytest.mark.parametrize("in_session", [False, True])
async def test_a_waiting_fetch_is_decided_anew(
    cluster: Cluster, before: int, in_session: bool
) -> None:
    broker = await with_topic(cluster)
    grant(broker, READ)
    admin, client = await cluster.client(), await client_of(cluster)
    await produce(admin, "clicks", b"x")
    connection, session = newest(broker), (0, -1)
    if in_session:
        session = ((await client.send(fetch_request(session=(0, 0)), 12)).session_id, 1)
        assert session[0]
    for _ in range(before):
        answer = await client.send(fetch_request(session=session, wait_ms=5_000), 12)
        assert errors_of(answer) == [Error.NONE]
        session = (session[0], session[1] + in_session)
    context = connection.context
    waiting = client.ask(fetch_request(offset=1, session=session, wait_ms=5_000), 12)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert (context is connection.context) == bool(before)  # nothing was registered for it
    grant(broker)
    await produce(admin, "clicks", b"secret")
    answer = await waiting
    assert errors_of(answer) == [T29]
    assert not answer.responses[0].partitions[0].records


async def test_a_partition_of_a_session_is_refused_with_the_next_request(cluster: Cluster) -> None:
    broker = await with_topic(cluster)
    grant(broker, READ)
    client = await client_of(cluster)
    id_ = (await client.send(fetch_request(session=(0, 0)), 12)).session_id
    nothing = fetch_request(session=(id_, 1))
    nothing.topics = []
    assert errors_of(await client.send(nothing, 12)) == []  # and so nothing is looked at any more
    grant(broker)
    for epoch in (2, 3):
        nothing.session_epoch = epoch
        assert errors_of(await client.send(nothing, 12)) == [T29]
    grant(broker, READ)
    nothing.session_epoch = 4
    assert errors_of(await client.send(nothing, 12)) == [Error.NONE]


async def test_who_may_read_nothing_of_a_fetch_takes_no_session_from_others(
    cluster: Cluster,
) -> None:
    broker = await with_topic(cluster)
    client = await client_of(cluster)
    answer = await client.send(fetch_request(session=(0, 0)), 12)
    assert (errors_of(answer), answer.session_id) == ([T29], 0)
    grant(broker, READ)
    assert (await client.send(fetch_request(session=(0, 0)), 12)).session_id


@pytest.mark.parametrize(("principal", "host"), [(BOB, ""), (ALICE, "10.9.9.9")])
async def test_a_session_is_its_owners(cluster: Cluster, principal: Principal, host: str) -> None:
    broker = await with_topic(cluster)
    grant(broker, READ)
    owner, other = await client_of(cluster), await client_of(cluster, principal, host)
    id_ = (await owner.send(fetch_request(session=(0, 0)), 12)).session_id
    answer = await other.send(fetch_request(session=(id_, 1)), 12)
    assert answer.error_code == Error.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (0, -1):  # as if it were to be closed
        await other.send(fetch_request(session=(id_, epoch)), 12)
    answer = await owner.send(fetch_request(session=(id_, 1)), 12)
    assert (answer.error_code, answer.session_id) == (Error.NONE, id_)


async def test_a_client_cannot_fetch_as_a_replica(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await with_topic(cluster)
    grant(broker, READ)
    client = await client_of(cluster)
    heard: list[Any] = []
    monkeypatch.setattr(
        Partition,
        "follower_fetched",
        lambda self, fetched: heard.append(fetched) if self.key.topic == "clicks" else None,
    )
    for version in range(4, 13):
        session = (0, 0) if version >= 7 else (0, -1)
        answer = await client.send(fetch_request(session=session, replica_id=1), version)
        assert (errors_of(answer), answer.session_id) == ([T29], 0)
    assert not heard
    grant(broker, Operation.CLUSTER_ACTION, on=CLUSTER)
    assert errors_of(await client.send(fetch_request(replica_id=1), 12)) == [Error.NONE]
    assert heard


# Produces


@pytest.mark.parametrize("version", [3, 9, 11])
async def test_a_right_that_is_gone_is_gone_with_the_next_request(
    cluster: Cluster, version: int
) -> None:
    broker = await with_topic(cluster)
    clients = [await client_of(cluster) for _ in range(2)]
    for is_allowed in (True, False, True, False):
        grant(broker, *[WRITE] * is_allowed)
        for client in clients * 3:
            answer = await client.send(produce_request("clicks", b"x", acks=1), version)
            (result,) = answer.responses[0].partition_responses
            assert result.error_code == (Error.NONE if is_allowed else T29)
    (log,) = (
        each.log
        for key, each in broker.service.replicas.partitions.items()
        if key.topic == "clicks"
    )
    assert log.end_offset == 12


@pytest.mark.parametrize("topics", [("clicks",), ("mine", "clicks")])
async def test_a_refused_produce_without_an_answer_closes_the_connection(
    cluster: Cluster, topics: tuple[str, ...]
) -> None:
    broker = await with_topic(cluster)
    await create(await cluster.client(), "mine")
    grant(broker, WRITE, name="mine")
    way = await raw_of(cluster)
    request = produce_request(topics[0], b"x", acks=0)
    request.topic_data += [
        each for name in topics[1:] for each in produce_request(name, b"x").topic_data
    ]
    way.transport.write(encode_request(RequestHeader(0, 9, 1, "c"), request))
    await cluster.until(lambda: way.is_closed)
    assert not way.received
    ends = {key.topic: p.log.end_offset for key, p in broker.service.replicas.partitions.items()}
    assert (ends["mine"], ends["clicks"]) == (len(topics) - 1, 0)


async def test_a_bug_in_a_rule_costs_the_request_and_not_the_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await with_topic(cluster)

    def fail(*_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setitem(rights._RULES, produce_api.API.key, fail)
    way = await raw_of(cluster)
    header = RequestHeader(produce_api.API.key, 9, 1, "c")
    way.transport.write(encode_request(header, produce_request("clicks", b"x")))
    await cluster.until(lambda: way.is_closed)
    assert not broker.failure.done()
    assert broker.measures.requests["Produce",].crashed == 1


# Topics that a broker would make


async def error_of_wanted(client: Client) -> int:
    asked = MetadataRequest(topics=[MetadataTopic(name="wanted")])
    (topic,) = (await client.send(asked, 9)).topics
    return int(topic.error_code)


@pytest.mark.parametrize("on", [CLUSTER, ResourceType.TOPIC])
async def test_a_broker_makes_a_topic_only_for_who_may(cluster: Cluster, on: ResourceType) -> None:
    broker = await started(cluster)
    grant(broker, DESCRIBE, name="wanted")
    client = await client_of(cluster)
    assert await error_of_wanted(client) == T29
    await asyncio.sleep(1)
    assert "wanted" not in broker.service.cache.topics
    grant(broker, DESCRIBE, CREATE, on=on, name="wanted")
    assert await error_of_wanted(client) == Error.LEADER_NOT_AVAILABLE
    await cluster.until(lambda: "wanted" in broker.service.cache.topics)


async def test_a_missing_topic_that_nobody_would_make_is_unknown(cluster: Cluster) -> None:
    broker = await started(cluster, auto_create_topics_enable="false")
    grant(broker, DESCRIBE, name="wanted")
    assert await error_of_wanted(await client_of(cluster)) == Error.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_refused_group_makes_no_internal_topic(cluster: Cluster) -> None:
    broker = await started(cluster)
    client = await client_of(cluster)
    answer = await client.send(FindCoordinatorRequest(key="g"), 3)
    assert answer.error_code == Error.GROUP_AUTHORIZATION_FAILED
    await asyncio.sleep(1)
    assert OFFSETS_TOPIC not in broker.service.cache.topics


# Who


async def connected(cluster: Cluster, **settings: str) -> tuple[Broker, Client]:
    broker = await cluster.started(**settings)
    client = await cluster.client()
    await asyncio.sleep(0.1)
    return broker, client


async def test_without_an_authorizer_everybody_is_the_same_subject(cluster: Cluster) -> None:
    broker, _ = await connected(cluster)
    assert newest(broker).subject is ANYBODY
    subject = broker.authorizer.subject
    assert subject(ALICE, "a") is subject(ALICE, "b") is not subject(BOB, "a")


async def test_with_an_authorizer_who_has_not_authenticated_is_limited_too(
    cluster: Cluster,
) -> None:
    broker, _ = await connected(cluster, **SETTINGS)
    subject = newest(broker).subject
    assert (subject.principal, subject.is_limited) == (ANONYMOUS, True)


async def test_a_dry_run_refuses_nothing_and_counts(cluster: Cluster) -> None:
    broker, client = await connected(
        cluster, **{"authorizer.class.name": ACL_AUTHORIZER, "authorizer.dry.run": "true"}
    )
    answer = await create(client, "clicks")
    assert answer.error_code == Error.NONE
    assert (await produce(client, "clicks", b"x")).error_code == Error.NONE
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    assert (await client.send(request, 0)).error_code == Error.NONE
    denials = {labels: each.denials for labels, each in broker.measures.authorization.items()}
    assert denials["Create", "Topic"] == denials["Write", "Topic"] == 1
    assert denials["IdempotentWrite", "Cluster"] == 1  # another right would have done


class Denying:
    """An authorizer without ACLs, in virtual time."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.metrics = Family(AuthorizationMetrics, "operation", "resource")
        given = AuthorizationSettings(authorizer_class_name=ACL_AUTHORIZER, **settings)
        self.authorizer = Authorizer(given, self.clock, self.metrics)

    def deny(self, name: str = "clicks", principal: Principal = ALICE) -> None:
        subject = self.authorizer.subject(principal, "10.0.0.1")
        assert not subject.may(READ, ResourceType.TOPIC, name)


def test_a_denial_is_counted_each_time_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    denying = Denying()
    with caplog.at_level(logging.INFO, "kdist.broker.authorization"):
        for _ in range(3):
            denying.deny()
        denying.deny("views")
        denying.deny(principal=BOB)
        assert len(caplog.messages) == 3
        assert "'User:alice' at 10.0.0.1 is denied Read on Topic 'clicks'" in caplog.messages[0]
        denying.clock.advance_ms(60_000)
        denying.deny()
    assert len(caplog.messages) == 5
    assert denying.metrics["Read", "Topic"].denials == 6


def test_made_up_names_fill_neither_memory_nor_log(caplog: pytest.LogCaptureFixture) -> None:
    denying = Denying()
    with caplog.at_level(logging.INFO, "kdist.broker.authorization"):
        for number in range(SENTENCES_OF_ONE_MAX + 100):
            denying.deny(f"{number}\n" + "x" * 10_000)
        assert len(caplog.messages) == SENTENCES_OF_ONE_MAX
        denying.deny(principal=BOB)
        assert "bob" in caplog.messages[-1]  # whom they do not hide
        for number in range(SENTENCES_MAX + 100):
            denying.deny(principal=Principal("User", str(number)))
    assert len(caplog.messages) == SENTENCES_MAX
    assert not any("\n" in each or len(each) > 1_000 for each in caplog.messages)


def test_subjects_last_as_long_as_they_are_used() -> None:
    authorizer = Denying().authorizer
    one = authorizer.subject(ALICE, "::ffff:10.0.0.1")
    assert authorizer.subject(ALICE, "10.0.0.1") is one
    assert authorizer.subject(ALICE, "10.0.0.2") is not one
    assert len(authorizer._subjects) == 1
    del one
    assert not authorizer._subjects


def test_super_users_that_cannot_be_read_are_a_fault() -> None:
    with pytest.raises(UserError, match="User:alice"):
        Denying(super_users="alice")
