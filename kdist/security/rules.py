"""The rules of the APIs for which no form of `decisions.py` will do (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kdist.errors import Error
from kdist.model import ZERO_UUID
from kdist.protocol.create_topics import NewTopic, NewTopicResult
from kdist.protocol.delete_topics import DeletedTopicResult
from kdist.protocol.describe_groups import DescribedGroup
from kdist.protocol.find_coordinator import GROUP_KEY, TRANSACTION_KEY, FindCoordinatorResponse
from kdist.protocol.metadata import (
    OMITTED,
    ON_CLUSTER,
    ON_GROUP,
    ON_TOPIC,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicResult,
)
from kdist.protocol.offset_fetch import (
    OffsetFetchGroupResult,
    OffsetFetchResponse,
    OffsetFetchTopic,
    OffsetFetchTopicResult,
)
from kdist.records.batch import HEADER_SIZE, MAGIC, MAGIC_POSITION, read_header
from kdist.security import refusals
from kdist.security.acls import CLUSTER_NAME, Operation, ResourceType
from kdist.security.decisions import (
    ALLOWED,
    Asker,
    Decision,
    Refused,
    Right,
    Rule,
    Split,
    bits,
    sift,
    split,
)
from kdist.wire.primitives import Buffer

_CREATE = Operation.CREATE
_DELETE = Operation.DELETE
_DESCRIBE = Operation.DESCRIBE
_WRITE = Operation.WRITE
_DESCRIBE_CONFIGS = Operation.DESCRIBE_CONFIGS
_TOPIC = ResourceType.TOPIC
_GROUP = ResourceType.GROUP
_CLUSTER = ResourceType.CLUSTER
_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
_T29 = Error.TOPIC_AUTHORIZATION_FAILED
_G30 = Error.GROUP_AUTHORIZATION_FAILED

_TOPIC_SETTINGS = 2  # the resource type in requests about settings
_FIRST_DELETION_BY_ID = 6
_FIRST_OFFSETS_OF_GROUPS = 8
_FIRST_OFFSETS_WITH_GROUP_ERROR = 2
_FIRST_MANY_COORDINATORS = 4

ON_CLUSTER_ACTION = Right(Operation.CLUSTER_ACTION, _CLUSTER)


# Records


def produce(request: Any, version: int, asker: Asker) -> Decision:
    """Whoever sends a transaction's records must own its id.

    The records say that they are, and not the field, which a client may leave out (CVE-2018-17196).
    """
    id_ = request.transactional_id
    has_transaction = any(
        _is_transactional(data.records or b"")
        for topic in request.topic_data
        for data in topic.partition_data
    )
    if has_transaction and (id_ is None or not asker.may(_WRITE, _TRANSACTIONAL_ID, id_)):
        error = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Refused(refusals.produce(request, version, error))
    kept, lost = sift(request.topic_data, lambda each: asker.may(_WRITE, _TOPIC, each.name))
    if lost and not kept:
        return Refused(refusals.produce(request, version, _T29))
    refused = [refusals.produce_topic(each, _T29) for each in lost]
    return split(request, "topic_data", kept, "responses", refused)


def _is_transactional(records: Buffer) -> bool:
    """Of the one batch that there may be, if it has a header; else it is refused later anyway."""
    return (
        len(records) >= HEADER_SIZE
        and records[MAGIC_POSITION] == MAGIC
        and read_header(records).is_transactional
    )


def fetch(request: Any, version: int, asker: Asker) -> Decision:
    """A follower needs a right to the cluster. A consumer's topics are for the handler to ask
    about, since in a session the request does not name them."""
    if request.follower_id < 0 or asker.may(*ON_CLUSTER_ACTION, CLUSTER_NAME):
        return ALLOWED
    return Refused(refusals.fetch(request, version, _T29))


def offset_for_leader_epoch(request: Any, _version: int, asker: Asker) -> Decision:
    """A broker may ask for all topics."""
    if asker.is_granted(*ON_CLUSTER_ACTION, CLUSTER_NAME):
        return ALLOWED
    kept, lost = sift(request.topics, lambda each: asker.may(_DESCRIBE, _TOPIC, each.topic))
    return split(
        request, "topics", kept, "topics", [refusals.epoch_topic(each, _T29) for each in lost]
    )


def init_producer_id(request: Any, version: int, asker: Asker) -> Decision:
    """A transactional id must be the client's; without one, whoever may write anywhere may do."""
    id_ = request.transactional_id
    if id_ is not None:
        right = Right(_WRITE, _TRANSACTIONAL_ID)
        is_allowed = asker.may(*right, id_)
    else:
        right = Right(Operation.IDEMPOTENT_WRITE, _CLUSTER)
        is_allowed = (
            asker.is_granted(*right, CLUSTER_NAME)
            or asker.may_any(_WRITE, _TOPIC)
            or asker.may(*right, CLUSTER_NAME)  # notes the denial
        )
    return (
        ALLOWED if is_allowed else Refused(refusals.init_producer_id(request, version, right.error))
    )


# The cluster


def metadata(request: Any, version: int, asker: Asker) -> Decision:
    """Topics that the client may not describe: named ones are refused before anybody looks whether
    they exist; from the answer for all topics they are left out, and ids get no name."""
    asked: list[MetadataTopic] | None = request.topics
    is_for_all = asked is None or (version == 0 and not asked)
    by_id, by_name = sift(asked or (), _is_by_id)
    kept, lost = sift(by_name, lambda each: asker.may(_DESCRIBE, _TOPIC, each.name or ""))
    refused = [_hidden_topic(each) for each in lost]
    is_for_none = not (is_for_all or kept or by_id)

    def complete(response: MetadataResponse) -> MetadataResponse:
        found = [] if is_for_none else response.topics
        seen = (_seen_topic(each, asker, is_for_all) for each in found)
        return dataclasses.replace(
            response,
            topics=[*(each for each in seen if each is not None), *refused],
            cluster_authorized_operations=_cluster_bits(
                response.cluster_authorized_operations, asker
            ),
        )

    rest = dataclasses.replace(request, topics=[*kept, *by_id]) if lost else request
    return Split(rest, complete)


def _is_by_id(topic: MetadataTopic) -> bool:
    return topic.name is None or topic.topic_id != ZERO_UUID


def _hidden_topic(topic: MetadataTopic) -> MetadataTopicResult:
    return MetadataTopicResult(
        error_code=_T29, name=topic.name, topic_id=topic.topic_id, partitions=[]
    )


def _seen_topic(
    result: MetadataTopicResult, asker: Asker, is_for_all: bool
) -> MetadataTopicResult | None:
    """What the client is shown of a topic that was found; None: nothing."""
    name, operations = result.name or "", result.topic_authorized_operations
    if result.error_code:  # no more than was asked is in it
        return result
    if not asker.could(_DESCRIBE, _TOPIC, name):
        hidden = MetadataTopic(name=None, topic_id=result.topic_id)
        return None if is_for_all else _hidden_topic(hidden)
    if operations == OMITTED:
        return result
    return dataclasses.replace(
        result, topic_authorized_operations=bits(asker, ON_TOPIC, _TOPIC, name)
    )


def describe_cluster(request: Any, _version: int, asker: Asker) -> Decision:
    """Brokers are told to everybody."""

    def complete(response: Any) -> Any:
        return dataclasses.replace(
            response,
            cluster_authorized_operations=_cluster_bits(
                response.cluster_authorized_operations, asker
            ),
        )

    return Split(request, complete)


def _cluster_bits(answered: int, asker: Asker) -> int:
    """What the client may do to the cluster, if it asks; nothing if it may not describe it."""
    if answered == OMITTED:
        return OMITTED
    if not asker.could(_DESCRIBE, _CLUSTER, CLUSTER_NAME):
        return 0
    return bits(asker, ON_CLUSTER, _CLUSTER, CLUSTER_NAME)


def create_topics(request: Any, _version: int, asker: Asker) -> Decision:
    """By a right to the cluster, or to the topic. Its settings are another right."""
    kept: list[NewTopic] = request.topics
    lost: list[NewTopic] = []
    if not asker.is_granted(_CREATE, _CLUSTER, CLUSTER_NAME):
        kept, lost = sift(request.topics, lambda each: asker.may(_CREATE, _TOPIC, each.name))
    refused = [_without_settings(refusals.new_topic(each, _T29), asker) for each in lost]
    decision = split(request, "topics", kept, "topics", refused)
    if isinstance(decision, Refused):
        return decision

    def complete(response: Any) -> Any:
        topics = [_without_settings(each, asker) for each in response.topics]
        return dataclasses.replace(response, topics=[*topics, *refused])

    return Split(dataclasses.replace(request, topics=kept), complete)


def _without_settings(result: NewTopicResult, asker: Asker) -> NewTopicResult:
    if asker.could(_DESCRIBE_CONFIGS, _TOPIC, result.name):
        return result
    return dataclasses.replace(
        result,
        topic_config_error_code=_T29,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


def delete_topics(request: Any, version: int, asker: Asker) -> Decision:
    """The name of a topic that is given by its id is told to those who may describe it."""
    if version < _FIRST_DELETION_BY_ID:
        kept, lost = sift(request.topic_names, lambda name: asker.may(_DELETE, _TOPIC, name))
        refused = [DeletedTopicResult(name=each, error_code=_T29) for each in lost]
        return split(request, "topic_names", kept, "responses", refused)
    faults = [(each, _deletion_fault(each, asker)) for each in request.topics]
    kept = [topic for topic, fault in faults if fault is None]
    return split(
        request, "topics", kept, "responses", [fault for _, fault in faults if fault is not None]
    )


def _deletion_fault(topic: Any, asker: Asker) -> DeletedTopicResult | None:
    id_, name = topic.topic_id, topic.name
    if id_ != ZERO_UUID:
        name = asker.topic_of(id_)
        if name is None:
            error = Error.UNKNOWN_TOPIC_ID
            return DeletedTopicResult(
                name=None, topic_id=id_, error_code=error, error_message=error.sentence
            )
    if asker.may(_DELETE, _TOPIC, name or ""):
        return None
    is_hidden = id_ != ZERO_UUID and not asker.could(_DESCRIBE, _TOPIC, name or "")
    return DeletedTopicResult(
        name=None if is_hidden else name,
        topic_id=id_,
        error_code=_T29,
        error_message=_T29.sentence,
    )


def on_settings(operation: Operation, refuse: Callable[[Any, Error], Any], results: str) -> Rule:
    """The rule of a request about the settings of topics, and of other resources: the cluster's."""

    def rule(request: Any, _version: int, asker: Asker) -> Decision:
        def right(resource: Any) -> tuple[Right, str]:
            if resource.resource_type == _TOPIC_SETTINGS:
                return Right(operation, _TOPIC), resource.resource_name
            return Right(operation, _CLUSTER), CLUSTER_NAME

        def is_allowed(resource: Any) -> bool:
            wanted, name = right(resource)
            return asker.may(*wanted, name)

        kept, lost = sift(request.resources, is_allowed)
        refused = [refuse(each, right(each)[0].error) for each in lost]
        return split(request, "resources", kept, results, refused)

    return rule


# Groups


def find_coordinator(request: Any, version: int, asker: Asker) -> Decision:
    """Refused before the internal topic is created for it."""
    types = {GROUP_KEY: _GROUP, TRANSACTION_KEY: _TRANSACTIONAL_ID}
    resource_type = types.get(request.key_type)
    if resource_type is None:
        return ALLOWED  # to be told that there is no such type
    right = Right(_DESCRIBE, resource_type)
    if version >= _FIRST_MANY_COORDINATORS:
        kept, lost = sift(request.coordinator_keys, lambda key: asker.may(*right, key))
        refused = [refusals.coordinator(each, right.error) for each in lost]
        return split(request, "coordinator_keys", kept, "coordinators", refused)
    if asker.may(*right, request.key):
        return ALLOWED
    one = refusals.coordinator(request.key, right.error)
    return Refused(
        FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    )


def describe_groups(request: Any, _version: int, asker: Asker) -> Decision:
    """Each group by itself."""
    kept, lost = sift(request.groups, lambda each: asker.may(_DESCRIBE, _GROUP, each))
    refused = [refusals.described_group(each, _G30) for each in lost]
    decision = split(request, "groups", kept, "groups", refused)
    if isinstance(decision, Refused) or not request.include_authorized_operations:
        return decision

    def complete(response: Any) -> Any:
        groups = [_with_operations(each, asker) for each in response.groups]
        return dataclasses.replace(response, groups=[*groups, *refused])

    return Split(dataclasses.replace(request, groups=kept), complete)


def _with_operations(group: DescribedGroup, asker: Asker) -> DescribedGroup:
    if group.authorized_operations == OMITTED:
        return group
    operations = bits(asker, ON_GROUP, _GROUP, group.group_id)
    return dataclasses.replace(group, authorized_operations=operations)


def list_groups(request: Any, _version: int, asker: Asker) -> Decision:
    """All groups to whoever may describe the cluster; to others those that they may describe."""
    if asker.could(_DESCRIBE, _CLUSTER, CLUSTER_NAME):
        return ALLOWED

    def complete(response: Any) -> Any:
        groups, _ = sift(
            response.groups, lambda each: asker.could(_DESCRIBE, _GROUP, each.group_id)
        )
        return dataclasses.replace(response, groups=groups)

    return Split(request, complete)


def offset_fetch(request: Any, version: int, asker: Asker) -> Decision:
    """Each group by itself, and in it each topic; all of a group's topics without the others."""
    if version >= _FIRST_OFFSETS_OF_GROUPS:
        return _offsets_of_groups(request, asker)
    if not asker.may(_DESCRIBE, _GROUP, request.group_id):
        topics = request.topics or () if version < _FIRST_OFFSETS_WITH_GROUP_ERROR else ()
        refused = [refusals.fetched_topic(each, _G30) for each in topics]
        return Refused(OffsetFetchResponse(topics=refused, error_code=_G30))
    if request.topics is None:
        return Split(request, lambda response: _with_seen_topics(response, asker))
    kept, lost = _offsets(request.topics, asker)
    return split(request, "topics", kept, "topics", lost)


def _offsets_of_groups(request: Any, asker: Asker) -> Decision:
    groups, lost = sift(request.groups, lambda each: asker.may(_DESCRIBE, _GROUP, each.group_id))
    refused = [
        OffsetFetchGroupResult(group_id=each.group_id, topics=[], error_code=_G30) for each in lost
    ]
    if not groups:
        return Refused(OffsetFetchResponse(groups=refused)) if refused else ALLOWED
    kept, lost_topics = [], []
    for group in groups:
        topics, hidden = (None, []) if group.topics is None else _offsets(group.topics, asker)
        kept.append(dataclasses.replace(group, topics=topics))
        lost_topics.append(hidden)

    def complete(response: Any) -> Any:
        completed = []
        for asked, hidden, found in zip(groups, lost_topics, response.groups, strict=True):
            seen = _with_seen_topics(found, asker) if asked.topics is None else found
            completed.append(dataclasses.replace(seen, topics=[*seen.topics, *hidden]))
        return dataclasses.replace(response, groups=[*completed, *refused])

    return Split(dataclasses.replace(request, groups=kept), complete)


def _offsets(
    topics: list[OffsetFetchTopic], asker: Asker
) -> tuple[list[OffsetFetchTopic], list[OffsetFetchTopicResult]]:
    kept, lost = sift(topics, lambda each: asker.may(_DESCRIBE, _TOPIC, each.name))
    return kept, [refusals.fetched_topic(each, _T29) for each in lost]


def _with_seen_topics(result: Any, asker: Asker) -> Any:
    topics, _ = sift(result.topics, lambda each: asker.could(_DESCRIBE, _TOPIC, each.name))
    return dataclasses.replace(result, topics=topics)
