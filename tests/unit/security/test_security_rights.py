"""What each API needs, in each version, and how it is refused."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import Error
from kdist.protocol import (
    create_topics,
    delete_topics,
    describe_log_dirs,
    init_producer_id,
    metadata,
    offset_fetch,
    produce,
)
from kdist.protocol.api import Api
from kdist.protocol.create_topics import CreateTopicsResponse, NewTopicResult, TopicSettingResult
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.fetch import API as FETCH
from kdist.protocol.frame import RequestHeader, decode_response, encode_request, encode_response
from kdist.protocol.metadata import MetadataRequest, MetadataResponse, MetadataTopicResult
from kdist.protocol.offset_fetch import OffsetFetchRequest
from kdist.protocol.versions import TABLE
from kdist.records.build import build_batch
from kdist.security import rights
from kdist.security.acls import Operation, ResourceType
from kdist.security.decisions import ALLOWED, Decision, Refused, Split
from tests.unit.protocol.protocol_samples import Case, sample
from tests.unit.security.plain_requests import plain_request

T29 = Error.TOPIC_AUTHORIZATION_FAILED
G30 = Error.GROUP_AUTHORIZATION_FAILED
C31 = Error.CLUSTER_AUTHORIZATION_FAILED
X53 = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

Right = tuple[Operation, ResourceType]
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ_GROUP: Right = (Operation.READ, GROUP)
CLUSTER_ACTION: Right = (Operation.CLUSTER_ACTION, CLUSTER)
ALTER: Right = (Operation.ALTER, CLUSTER)
DESCRIBE: Right = (Operation.DESCRIBE, CLUSTER)


def every(sufficient: list[set[Right]], names: Iterable[str]) -> dict[str, list[set[Right]]]:
    return dict.fromkeys(names, sufficient)


# What suffices for a request that names a topic, a group, and no transaction.
SUFFICIENT: dict[str, list[set[Right]]] = {
    "Produce": [{(Operation.WRITE, TOPIC)}],
    "Fetch": [set()],  # the handler asks
    "ListOffsets": [{(Operation.DESCRIBE, TOPIC)}],
    "Metadata": [{(Operation.DESCRIBE, TOPIC)}],
    **every(
        [{CLUSTER_ACTION}],
        names=(
            *("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown"),
            *("AlterPartition", "AllocateProducerIds"),
        ),
    ),
    "OffsetCommit": [{READ_GROUP, (Operation.READ, TOPIC)}],
    "OffsetFetch": [{(Operation.DESCRIBE, GROUP), (Operation.DESCRIBE, TOPIC)}],
    "FindCoordinator": [{(Operation.DESCRIBE, GROUP)}],
    **every([{READ_GROUP}], names=("JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup")),
    "DescribeGroups": [{(Operation.DESCRIBE, GROUP)}],
    **every([set()], names=("ListGroups", "ApiVersions", "DescribeCluster")),
    "CreateTopics": [{(Operation.CREATE, CLUSTER)}, {(Operation.CREATE, TOPIC)}],
    **every([{(Operation.DELETE, TOPIC)}], names=("DeleteTopics", "DeleteRecords")),
    "InitProducerId": [{(Operation.IDEMPOTENT_WRITE, CLUSTER)}, {(Operation.WRITE, TOPIC)}],
    "OffsetForLeaderEpoch": [{CLUSTER_ACTION}, {(Operation.DESCRIBE, TOPIC)}],
    "DescribeAcls": [{DESCRIBE}],
    **every([{ALTER}], names=("CreateAcls", "DeleteAcls")),
    **every([set()], names=("SaslHandshake", "SaslAuthenticate")),
    "DescribeUserScramCredentials": [{DESCRIBE}],
    "AlterUserScramCredentials": [{ALTER}],
    "DescribeConfigs": [{(Operation.DESCRIBE_CONFIGS, TOPIC)}],
    **every(
        [{(Operation.ALTER_CONFIGS, TOPIC)}], names=("AlterConfigs", "IncrementalAlterConfigs")
    ),
    **every(
        [{ALTER}], names=("AlterReplicaLogDirs", "ElectLeaders", "AlterPartitionReassignments")
    ),
    **every([{DESCRIBE}], names=("DescribeLogDirs", "ListPartitionReassignments")),
    "CreatePartitions": [{(Operation.ALTER, TOPIC)}],
    "DeleteGroups": [{(Operation.DELETE, GROUP)}],
    "OffsetDelete": [{(Operation.DELETE, GROUP), (Operation.READ, TOPIC)}],
    "DescribeClientQuotas": [{(Operation.DESCRIBE_CONFIGS, CLUSTER)}],
    "AlterClientQuotas": [{(Operation.ALTER_CONFIGS, CLUSTER)}],
}
EVERY_RIGHT = list(product(Operation, ResourceType))
ID = uuid.UUID(int=7)
by_api = pytest.mark.parametrize("api", TABLE, ids=[api.name for api in TABLE])


class Asker:
    """Has some rights to everything, or every right to some names; knows one topic's id."""

    def __init__(self, granted: Iterable[Right] = (), *, names: Iterable[str] = ()) -> None:
        self.granted = set(granted)
        self.names = set(names)
        self.denied: list[tuple[Right, str]] = []

    def could(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        return (operation, resource_type) in self.granted or name in self.names

    is_granted = could

    def may(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        is_allowed = self.could(operation, resource_type, name)
        if not is_allowed:
            self.denied.append(((operation, resource_type), name))
        return is_allowed

    def may_any(self, operation: Operation, resource_type: ResourceType, /) -> bool:
        return (operation, resource_type) in self.granted

    def topic_of(self, topic_id: uuid.UUID, /) -> str | None:
        return {ID: "clicks"}.get(topic_id)


def versions(api: Api) -> range:
    return range(api.oldest, api.newest + 1)


def decide(api: Api, request: Any, version: int, asker: Asker) -> Decision:
    return rights.decide(api.key, request, version, asker)


def is_whole(decision: Decision, request: Any) -> bool:
    return decision is ALLOWED or (isinstance(decision, Split) and decision.request == request)


def response_to(decision: Decision) -> Any:
    assert isinstance(decision, Refused)
    return decision.response


def errors_in(api: Api, version: int, response: Any) -> set[int]:
    """The errors, at whatever depth, that a client reads."""
    _, read = decode_response(
        api, version, b"".join(encode_response(version, 1, response).chunks())[4:]
    )
    return set(_errors(read)) - {0}


def _errors(value: Any) -> Iterable[int]:
    if isinstance(value, list):
        for each in value:
            yield from _errors(each)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            if name == "error_code":
                yield value.error_code
            else:
                yield from _errors(getattr(value, name))


def test_every_api_has_a_row_and_no_other() -> None:
    rights.check()
    assert SUFFICIENT.keys() == rights.ROWS.keys()


@by_api
def test_each_right_that_suffices_does_and_no_other(api: Api) -> None:
    sufficient = SUFFICIENT[api.name]
    for version in versions(api):
        request = plain_request(api, version)
        for granted in sufficient:
            assert is_whole(decide(api, request, version, Asker(granted)), request)
            for lacking in granted:
                asker = Asker(set(EVERY_RIGHT) - {lacking} if len(sufficient) == 1 else ())
                assert not is_whole(decide(api, request, version, asker), request)
                assert asker.denied
        others = [{each} for each in EVERY_RIGHT if {each} not in sufficient]
        for granted in others if set() not in sufficient else ():
            assert not is_whole(decide(api, request, version, Asker(granted)), request)


@by_api
@given(rng=st.randoms(use_true_random=False))
def test_who_may_do_everything_is_given_all_that_was_asked(api: Api, rng: random.Random) -> None:
    asker = Asker(EVERY_RIGHT)
    for version in versions(api):
        request = sample(Case(api.request, version), rng)
        if api is delete_topics.API and any(each.topic_id.int for each in request.topics):
            continue  # ids that nobody has
        if api is produce.API:
            request.transactional_id = None
        decision = decide(api, request, version, asker)
        assert is_whole(decision, request)
        assert not asker.denied


@by_api
@given(rng=st.randoms(use_true_random=False))
def test_every_version_can_say_what_was_refused(api: Api, rng: random.Random) -> None:
    for version in versions(api):
        header = RequestHeader(api.key, version, 1, "c")
        asker = Asker(names=rng.sample(["", "a", "b"], 1))
        request = sample(Case(api.request, version), rng)
        decision = decide(api, request, version, asker)
        if isinstance(decision, Split):
            assert encode_request(header, decision.request)
        elif isinstance(decision, Refused) and decision.response is not None:
            assert encode_response(version, 1, decision.response)
        else:
            assert decision is ALLOWED or not request.acks


ERROR_OF = {TOPIC: T29, GROUP: G30, CLUSTER: C31, ResourceType.TRANSACTIONAL_ID: X53}
FIRST_WITH_AN_ERROR = {describe_log_dirs.API: 3}


@by_api
def test_a_refusal_has_the_error_of_what_was_lacking_and_no_other(api: Api) -> None:
    for version in versions(api):
        request = plain_request(api, version)
        asker = Asker()
        decision = decide(api, request, version, asker)
        if isinstance(decision, Refused):
            ((_, resource_type), _), *others = asker.denied
            assert {kind for (_, kind), _ in others} <= {resource_type}
            told = errors_in(api, version, decision.response)
            has_place = version >= FIRST_WITH_AN_ERROR.get(api, 0)
            assert told == ({ERROR_OF[resource_type]} if has_place else set()), version
        else:
            assert set() in SUFFICIENT[api.name] or api is metadata.API


def test_a_follower_needs_the_right_of_brokers_and_no_other() -> None:
    for version in versions(FETCH):
        request = plain_request(FETCH, version)
        if version <= 14:
            request.replica_id = 3
        else:
            request.replica_state = type("State", (), {"replica_id": 3, "replica_epoch": -1})()
        assert decide(FETCH, request, version, Asker({CLUSTER_ACTION})) is ALLOWED
        everything_else = set(EVERY_RIGHT) - {CLUSTER_ACTION}
        response = response_to(decide(FETCH, request, version, Asker(everything_else)))
        assert errors_in(FETCH, version, response) == {T29}
        assert response.session_id == 0


def produce_of(is_transactional: bool, transactional_id: str | None, acks: int = -1) -> Any:
    request = plain_request(produce.API, 9, "clicks")
    records = build_batch(
        [b"v"],
        timestamp_ms=1,
        producer_id=4,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    request.topic_data[0].partition_data[0].records = bytes(records)
    request.transactional_id, request.acks = transactional_id, acks
    return request


@pytest.mark.parametrize(
    ("is_transactional", "transactional_id", "owned", "is_allowed"),
    [
        (True, "mine", "mine", True),
        (True, "other", "mine", False),
        (True, None, "mine", False),  # the records decide, and not the field
        (False, None, "", True),
        (False, "other", "", True),
    ],
)
def test_a_transactions_records_need_its_id(
    is_transactional: bool, transactional_id: str | None, owned: str, is_allowed: bool
) -> None:
    request = produce_of(is_transactional, transactional_id)
    decision = decide(produce.API, request, 9, Asker(names={owned, "clicks"}))
    if is_allowed:
        assert decision is ALLOWED
    else:
        assert errors_in(produce.API, 9, response_to(decision)) == {X53}


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_refused_produce_that_nobody_answers_has_no_answer(is_transactional: bool) -> None:
    request = produce_of(is_transactional, None, acks=0)
    assert response_to(decide(produce.API, request, 9, Asker())) is None


def test_what_was_refused_follows_the_answer_to_the_rest() -> None:
    request = plain_request(produce.API, 9, "mine")
    request.topic_data += plain_request(produce.API, 9, "other").topic_data
    decision = decide(produce.API, request, 9, Asker(names={"mine"}))
    assert isinstance(decision, Split)
    assert [each.name for each in decision.request.topic_data] == ["mine"]
    rest = produce.ProduceResponse(
        responses=[produce.ProduceTopicResult(name="mine", partition_responses=[])]
    )
    whole = decision.complete(rest)
    assert [each.name for each in whole.responses] == ["mine", "other"]
    assert [each.error_code for each in whole.responses[1].partition_responses] == [T29]


# Metadata


def found(name: str | None, error: Error = Error.NONE, id_: uuid.UUID = ID) -> MetadataTopicResult:
    operations = metadata.ON_TOPIC
    return MetadataTopicResult(
        error_code=error,
        name=name,
        topic_id=id_,
        partitions=[],
        topic_authorized_operations=operations,
    )


def metadata_of(topics: Any, answered: list[MetadataTopicResult], asker: Asker) -> Any:
    """What is asked of the handler, and the answer when the handler's is this."""
    decision = decide(metadata.API, MetadataRequest(topics=topics), 12, asker)
    assert isinstance(decision, Split)
    return decision.request.topics, decision.complete(
        MetadataResponse(brokers=[], topics=answered)
    ).topics


def test_topics_that_one_may_not_describe_are_left_out_of_all_topics() -> None:
    asker = Asker(names={"mine"})
    asked, told = metadata_of(None, [found("mine"), found("other")], asker)
    assert asked is None
    assert [each.name for each in told] == ["mine"]
    assert not asker.denied


def test_a_named_topic_that_one_may_not_describe_is_not_looked_up() -> None:
    topics = [metadata.MetadataTopic(name=each) for each in ("mine", "other")]
    asked, told = metadata_of(topics, [found("mine")], Asker(names={"mine"}))
    assert [each.name for each in asked] == ["mine"]
    assert [(each.name, each.error_code, each.topic_id.int) for each in told] == [
        ("mine", Error.NONE, 7),
        ("other", T29, 0),
    ]


def test_the_name_of_a_topic_given_by_its_id_is_told_only_to_who_may_describe_it() -> None:
    topics = [metadata.MetadataTopic(name=None, topic_id=ID)]
    _, (told,) = metadata_of(topics, [found("other")], Asker(names={"mine"}))
    assert (told.name, told.topic_id, told.error_code) == (None, ID, T29)
    _, (told,) = metadata_of(topics, [found("mine")], Asker(names={"mine"}))
    assert (told.name, told.error_code) == ("mine", Error.NONE)
    unknown = found(None, Error.UNKNOWN_TOPIC_ID)
    assert metadata_of(topics, [unknown], Asker())[1] == [unknown]


def test_version_0_of_metadata_does_not_tell_of_all_topics_when_all_named_are_refused() -> None:
    request = MetadataRequest(topics=[metadata.MetadataTopic(name="other")])
    decision = decide(metadata.API, request, 0, Asker(names={"mine"}))
    assert isinstance(decision, Split)
    answer = decision.complete(MetadataResponse(brokers=[], topics=[found("mine")]))
    assert [each.name for each in answer.topics] == ["other"]


def test_authorized_operations_are_those_that_one_has() -> None:
    asker = Asker({(Operation.DESCRIBE, TOPIC), (Operation.WRITE, TOPIC)})
    _, (told,) = metadata_of(None, [found("mine")], asker)
    assert told.topic_authorized_operations == 1 << Operation.DESCRIBE | 1 << Operation.WRITE
    assert not asker.denied


@pytest.mark.parametrize(
    ("granted", "bits"),
    [
        ({ALTER}, 0),  # but may not describe it
        ({ALTER, DESCRIBE}, 1 << Operation.ALTER | 1 << Operation.DESCRIBE),
    ],
)
def test_the_clusters_authorized_operations_are_told_to_who_may_describe_it(
    granted: set[Right], bits: int
) -> None:
    decision = decide(metadata.API, MetadataRequest(topics=[]), 8, Asker(granted))
    assert isinstance(decision, Split)
    answer = MetadataResponse(
        brokers=[], topics=[], cluster_authorized_operations=metadata.ON_CLUSTER
    )
    assert decision.complete(answer).cluster_authorized_operations == bits


# Topics


def test_a_new_topics_settings_are_told_only_to_who_may_read_them() -> None:
    setting = TopicSettingResult(
        name="retention.ms", value="1", read_only=False, is_sensitive=False
    )
    made = NewTopicResult(
        name="x", error_code=0, num_partitions=3, replication_factor=2, configs=[setting]
    )
    request = plain_request(create_topics.API, 7)
    for more, told in (
        ({(Operation.DESCRIBE_CONFIGS, TOPIC)}, (0, 3, 2, [setting])),
        (set[Right](), (T29, -1, -1, [])),
    ):
        asker = Asker({(Operation.CREATE, TOPIC)} | more)
        decision = decide(create_topics.API, request, 7, asker)
        assert isinstance(decision, Split)
        (topic,) = decision.complete(CreateTopicsResponse(topics=[made])).topics
        shown = topic.topic_config_error_code, topic.num_partitions, topic.replication_factor
        assert (*shown, topic.configs) == told
        assert topic.error_code == Error.NONE
        assert not asker.denied


@pytest.mark.parametrize(
    ("granted", "id_", "told"),
    [
        (set(), ID, (None, ID, T29)),
        ({(Operation.DESCRIBE, TOPIC)}, ID, ("clicks", ID, T29)),
        (set(EVERY_RIGHT), uuid.UUID(int=8), (None, uuid.UUID(int=8), Error.UNKNOWN_TOPIC_ID)),
    ],
)
def test_a_topic_that_is_to_be_deleted_by_its_id_keeps_its_name_secret(
    granted: set[Right], id_: uuid.UUID, told: tuple[str | None, uuid.UUID, Error]
) -> None:
    request = DeleteTopicsRequest(topics=[TopicToDelete(topic_id=id_)], timeout_ms=1)
    response = response_to(decide(delete_topics.API, request, 6, Asker(granted)))
    (result,) = response.responses
    assert (result.name, result.topic_id, result.error_code) == told


def test_a_topic_may_be_deleted_by_its_id_with_the_right_to_its_name() -> None:
    request = DeleteTopicsRequest(topics=[TopicToDelete(topic_id=ID)], timeout_ms=1)
    assert decide(delete_topics.API, request, 6, Asker(names={"clicks"})) is ALLOWED


def test_a_producers_id_is_refused_by_the_cluster_or_by_the_transactional_id() -> None:
    request = plain_request(init_producer_id.API, 4)
    assert response_to(decide(init_producer_id.API, request, 4, Asker())).error_code == C31
    request.transactional_id = "other"
    everything_else = set(EVERY_RIGHT) - {(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)}
    refused = response_to(decide(init_producer_id.API, request, 4, Asker(everything_else)))
    assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (X53, -1, -1)


# Groups


def test_all_offsets_of_a_group_come_without_topics_that_one_may_not_describe() -> None:
    asker = Asker(names={"g", "mine"})
    results = [
        offset_fetch.OffsetFetchTopicResult(name=each, partitions=[]) for each in ("mine", "other")
    ]
    for version in (2, 8):
        request: Any = OffsetFetchRequest(group_id="g", topics=None)
        answer: Any = offset_fetch.OffsetFetchResponse(topics=results)
        if version == 8:
            group = offset_fetch.OffsetFetchGroup(group_id="g", topics=None)
            request = OffsetFetchRequest(groups=[group])
            found_group = offset_fetch.OffsetFetchGroupResult(group_id="g", topics=results)
            answer = offset_fetch.OffsetFetchResponse(groups=[found_group])
        decision = decide(offset_fetch.API, request, version, asker)
        assert isinstance(decision, Split)
        told = decision.complete(answer)
        topics = told.groups[0].topics if version == 8 else told.topics
        assert [each.name for each in topics] == ["mine"]
    assert not asker.denied


def test_a_groups_refused_topics_are_not_taken_for_all_topics() -> None:
    for version in versions(offset_fetch.API):
        request = plain_request(offset_fetch.API, version, "g")
        named = request.groups[0] if version == 8 else request
        named.topics[0].name = "other"
        decision = decide(offset_fetch.API, request, version, Asker(names={"g"}))
        if version == 8:
            assert isinstance(decision, Split)
            assert decision.request.groups[0].topics == []
        else:
            assert errors_in(offset_fetch.API, version, response_to(decision)) == {T29}
