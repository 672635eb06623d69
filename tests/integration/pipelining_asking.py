"""Requests of one connection about topics, settings and groups, and what their answers must be.

`Asking` writes requests down and changes its model of the connection's own topics as it goes; each
check holds whatever became of the answers before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from kdist.errors import Error
from kdist.protocol import (
    api_versions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    heartbeat,
    incremental_alter_configs,
    metadata,
    offset_commit,
    offset_fetch,
)
from kdist.protocol.api import Api
from kdist.protocol.frame import RequestHeader, decode_response, encode_request
from tests.integration.pipelining_model import Log, Topic

PARTITIONS = 3
_TOPIC = 2  # as a resource type
_SETTING = "flush.messages"
Check = Callable[[Any], str]
"""What is wrong about an answer; empty: nothing."""


class Expected(NamedTuple):
    """An answer that is still to come."""

    correlation_id: int
    api: Api
    version: int
    what: str
    check: Check

    def fault(self, frame: bytes) -> str:
        """What is wrong about it."""
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != self.correlation_id:
            return f"{self} was next, and {correlation_id} came"
        fault = self.check(decode_response(self.api, self.version, frame)[1])
        return f"{self}: {fault}" if fault else ""

    def __str__(self) -> str:
        return f"{self.correlation_id} {self.api.name} {self.version} {self.what}"


class Cluster(NamedTuple):
    """`is_careful`: only acks=all is done when records are visible, as a flush comes before."""

    port: int
    broker_id: int
    is_careful: bool


class Asking:
    """The requests of one connection. Owner: its thread."""

    def __init__(self, name: str, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.name = name
        self.frames: list[bytes] = []
        self.expected: list[Expected] = []
        self.topics = [Topic(name), Topic(f"{name}-aside")]
        self.producer_id = -1
        self.committed = -1
        self._correlation_id = rng.randrange(1 << 30)
        self._versions: dict[str, int] = {}
        self._records = 0

    def version(self, api: Api, oldest: int | None = None, newest: int | None = None) -> int:
        """Mostly the same one, as a client's."""
        lowest = api.oldest if oldest is None else oldest
        highest = api.newest if newest is None else newest
        if self.rng.random() < 0.1:
            return self.rng.randrange(lowest, highest + 1)
        chosen = self.rng.choice((highest, self.rng.randrange(lowest, highest + 1)))
        return max(lowest, self._versions.setdefault(api.name, chosen))

    def ask(self, api: Api, version: int, request: Any, what: str, check: Check | None) -> None:
        """Record a request to send; without a `check` it gets no answer."""
        self._correlation_id += 1
        header = RequestHeader(api.key, version, self._correlation_id, self.name)
        self.frames.append(bytes(encode_request(header, request)))
        if check is not None:
            self.expected.append(Expected(self._correlation_id, api, version, what, check))

    def some_topic(self) -> Topic:
        """Mostly the one that is always there."""
        return self.topics[self.rng.random() < 0.2]

    def visible_end(self, log: Log) -> int:
        """What whoever asks now sees at least: what was produced before is done then."""
        return max(log.start, log.shown)

    def create(self, topic: Topic) -> None:
        version = self.version(create_topics.API)
        code = Error.TOPIC_ALREADY_EXISTS if topic.logs else Error.NONE
        assignments = [
            create_topics.ReplicaAssignment(
                partition_index=index, broker_ids=[self.cluster.broker_id]
            )
            for index in range(PARTITIONS)
        ]
        new = create_topics.NewTopic(
            name=topic.name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=[],
        )
        request = create_topics.CreateTopicsRequest(topics=[new], timeout_ms=20_000)
        if not topic.logs:
            topic.create(PARTITIONS)
        self.ask(create_topics.API, version, request, topic.name, code_of("topics", code))

    def delete(self, topic: Topic) -> None:
        version = self.version(delete_topics.API)
        code = Error.NONE if topic.logs else Error.UNKNOWN_TOPIC_OR_PARTITION
        deleted = delete_topics.TopicToDelete(name=topic.name)
        request = delete_topics.DeleteTopicsRequest(topics=[deleted], timeout_ms=20_000)
        if version <= 5:
            request = delete_topics.DeleteTopicsRequest(topic_names=[topic.name], timeout_ms=20_000)
        topic.delete()
        self.ask(delete_topics.API, version, request, topic.name, code_of("responses", code))

    def set_flush(self, topic: Topic, value: int) -> None:
        """One of the topic's settings."""
        change = incremental_alter_configs.SettingChange(
            name=_SETTING, config_operation=incremental_alter_configs.SET, value=str(value)
        )
        resource = incremental_alter_configs.ChangedResource(
            resource_type=_TOPIC, resource_name=topic.name, configs=[change]
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=False
        )
        topic.setting = str(value)
        version = self.version(incremental_alter_configs.API)
        check = code_of("responses", 0)
        self.ask(incremental_alter_configs.API, version, request, str(value), check)

    def describe_setting(self, topic: Topic) -> None:
        asked = describe_configs.DescribedResource(
            resource_type=_TOPIC, resource_name=topic.name, configuration_keys=[_SETTING]
        )
        request = describe_configs.DescribeConfigsRequest(resources=[asked])
        wanted = topic.setting

        def check(answer: Any) -> str:
            found = [each.value for each in answer.results[0].configs]
            return unlike(found, [wanted]) if wanted else ""

        version = self.version(describe_configs.API)
        self.ask(describe_configs.API, version, request, topic.name, check)

    def trim(self, topic: Topic, index: int, offset: int) -> None:
        """DeleteRecords."""
        log = topic.logs[index]
        code = Error.NONE
        if offset > log.end:
            code = Error.OFFSET_OUT_OF_RANGE
        elif offset > log.start:
            log.start = offset
            log.changes += 1
        start = log.start if code is Error.NONE else -1
        trimmed = delete_records.TrimmedPartition(partition_index=index, offset=offset)
        request = delete_records.DeleteRecordsRequest(
            topics=[delete_records.TrimmedTopic(name=topic.name, partitions=[trimmed])],
            timeout_ms=20_000,
        )

        def check(answer: Any) -> str:
            result = answer.topics[0].partitions[0]
            return unlike((result.error_code, result.low_watermark), (code, start))

        version = self.version(delete_records.API)
        self.ask(delete_records.API, version, request, f"{topic.name} {index} {offset}", check)

    def describe(self, topic: Topic) -> None:
        """Metadata."""
        version = self.version(metadata.API)
        request = metadata.MetadataRequest(topics=[metadata.MetadataTopic(name=topic.name)])
        request.allow_auto_topic_creation = version < 4
        code = Error.NONE if topic.logs else Error.UNKNOWN_TOPIC_OR_PARTITION
        leaders = {self.cluster.broker_id} if topic.logs else set()

        def check(answer: Any) -> str:
            (result,) = answer.topics
            found = {each.leader_id for each in result.partitions}
            return unlike((result.error_code, found), (code, leaders))

        self.ask(metadata.API, version, request, topic.name, check)

    # Groups and others

    def ask_versions(self) -> None:
        version = self.version(api_versions.API)
        request = api_versions.ApiVersionsRequest(
            client_software_name="kdist", client_software_version="1"
        )
        self.ask(api_versions.API, version, request, "", lambda r: unlike(r.error_code, 0))

    def beat(self) -> None:
        """A Heartbeat as an unknown member."""
        request = heartbeat.HeartbeatRequest(
            group_id=self.name, generation_id=1, member_id="nobody"
        )
        version = self.version(heartbeat.API)
        known = (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION)
        self.ask(
            heartbeat.API,
            version,
            request,
            "",
            lambda r: "" if r.error_code in known else str(r.error_code),
        )

    def commit(self, offset: int) -> None:
        part = offset_commit.OffsetCommitPartition(
            partition_index=0, committed_offset=offset, committed_metadata="m"
        )
        data = offset_commit.OffsetCommitTopic(name=self.name, partitions=[part])
        request = offset_commit.OffsetCommitRequest(group_id=self.name, topics=[data])
        self.committed = offset
        self.ask(
            offset_commit.API,
            self.version(offset_commit.API, 2),
            request,
            str(offset),
            lambda r: unlike(r.topics[0].partitions[0].error_code, 0),
        )

    def fetch_committed(self) -> None:
        version, committed = self.version(offset_fetch.API, 1), self.committed
        data = [offset_fetch.OffsetFetchTopic(name=self.name, partition_indexes=[0])]
        request = offset_fetch.OffsetFetchRequest(group_id=self.name, topics=data)
        if version >= 8:
            group = offset_fetch.OffsetFetchGroup(group_id=self.name, topics=data)
            request = offset_fetch.OffsetFetchRequest(groups=[group])

        def check(answer: Any) -> str:
            topics = answer.groups[0].topics if version >= 8 else answer.topics
            return unlike(topics[0].partitions[0].committed_offset, committed)

        self.ask(offset_fetch.API, version, request, str(committed), check)


def code_of(field: str, code: int) -> Check:
    return lambda answer: unlike(getattr(answer, field)[0].error_code, code)


def unlike(found: object, wanted: object) -> str:
    return "" if found == wanted else f"{found}, and not {wanted}"
