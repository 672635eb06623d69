"""Where versions of one API differ in more than a field, and the requests that no peer library has.

The frames are written out from Kafka's message definitions, by hand.
"""

import uuid

import pytest

from kdist.errors import Error, ProtocolError
from kdist.protocol.compiler import codec_for
from kdist.protocol.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.fetch import FetchPartitionResult, FetchResponse, FetchTopicResult
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.join_group import JoinGroupResponse
from kdist.protocol.leader_and_isr import (
    LeaderAndIsrPartition,
    LeaderAndIsrPartitionResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrTopicResult,
    LiveLeader,
)
from kdist.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResult,
)
from kdist.protocol.metadata import MetadataRequest, MetadataTopic
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchGroup, OffsetFetchRequest
from kdist.protocol.stop_replica import (
    StoppedPartition,
    StoppedTopic,
    StoppedTopicState,
    StopReplicaRequest,
    UngroupedPartition,
)
from kdist.protocol.update_metadata import (
    Endpoint,
    LiveBroker,
    UpdatedPartition,
    UpdatedTopic,
    UpdateMetadataRequest,
)
from tests.refusals import refused

TOPIC_ID = uuid.UUID(int=5)
ID_BYTES = "00" * 15 + "05"


def check(message, version, layout):
    """`message` at `version` is `layout`, and the other way round."""
    out = bytearray()
    codec_for(type(message), version).encode(message, out)
    assert out.hex() == bytes.fromhex(layout).hex()
    assert codec_for(type(message), version).decode(out, 0) == (message, len(out))


def refuse(message, version, what):
    with refused(Error.UNSUPPORTED_VERSION, what):
        codec_for(type(message), version).encode(message, bytearray())


def test_metadata_asks_for_all_topics_with_an_empty_list_in_0_and_with_null_since():
    check(MetadataRequest(topics=[]), 0, "00000000")
    refuse(MetadataRequest(topics=None), 0, "null topics")
    check(MetadataRequest(topics=None), 1, "ffffffff")
    check(MetadataRequest(topics=[]), 1, "00000000")
    check(MetadataRequest(topics=None), 9, "00 01 00 00 00")


def test_metadata_0_refuses_a_null_list_when_it_reads_one():
    with pytest.raises(ProtocolError, match="a count of -1"):
        codec_for(MetadataRequest, 0).decode(b"\xff\xff\xff\xff", 0)


def test_metadata_can_ask_by_id_since_10():
    by_id = MetadataRequest(topics=[MetadataTopic(topic_id=TOPIC_ID, name=None)])
    check(by_id, 12, f"02 {ID_BYTES} 00 00  01 00 00")
    refuse(by_id, 9, "null name")


def test_list_offsets_0_asks_for_a_number_of_offsets_and_gets_a_list():
    partition = ListOffsetsPartition(partition_index=1, timestamp=-1, max_num_offsets=2)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[partition])])
    check(
        request,
        0,
        "ffffffff 00000001 0001 74 00000001 00000001 ffffffffffffffff 00000002",
    )
    refuse(request, 1, "max_num_offsets")
    result = ListOffsetsPartitionResult(partition_index=1, error_code=0, old_style_offsets=[8, 0])
    check(
        ListOffsetsResponse(topics=[ListOffsetsTopicResult(name="t", partitions=[result])]),
        0,
        "00000001 0001 74 00000001 00000001 0000 00000002 0000000000000008 0000000000000000",
    )


def test_offset_commit_0_has_no_member_1_a_timestamp_and_2_a_retention_time():
    def request(**partition):
        committed = OffsetCommitPartition(
            partition_index=1, committed_offset=7, committed_metadata=None, **partition
        )
        return OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitTopic(name="t", partitions=[committed])]
        )

    head, partition = "00000001 0001 74 00000001", "00000001 0000000000000007"
    check(request(), 0, f"0001 67 {head} {partition} ffff")
    stamped = request(commit_timestamp=9)
    check(stamped, 1, f"0001 67 ffffffff 0000 {head} {partition} 0000000000000009 ffff")
    refuse(stamped, 2, "commit_timestamp")
    check(request(), 2, f"0001 67 ffffffff 0000 ffffffffffffffff {head} {partition} ffff")
    check(request(), 5, f"0001 67 ffffffff 0000 {head} {partition} ffff")


def test_offset_fetch_8_takes_groups_instead_of_one_group():
    check(OffsetFetchRequest(group_id="g", topics=None), 2, "0001 67 ffffffff")
    refuse(OffsetFetchRequest(group_id="g", topics=None), 1, "null topics")
    many = OffsetFetchRequest(groups=[OffsetFetchGroup(group_id="g", topics=None)])
    check(many, 8, "02 02 67 00 00 00 00")
    refuse(many, 7, "groups")
    refuse(OffsetFetchRequest(group_id="g", topics=[]), 8, "group_id")


def test_find_coordinator_4_takes_keys_instead_of_one_key():
    check(FindCoordinatorRequest(key="g"), 0, "0001 67")
    check(FindCoordinatorRequest(key="g", key_type=1), 1, "0001 67 01")
    check(FindCoordinatorRequest(coordinator_keys=["g", "h"]), 4, "00 03 02 67 02 68 00")
    refuse(FindCoordinatorRequest(key="g"), 4, "key")


def test_join_group_has_a_null_protocol_name_since_7():
    def response(protocol_name):
        return JoinGroupResponse(
            error_code=25, protocol_name=protocol_name, leader="", member_id="", members=[]
        )

    check(response(""), 0, "0019 ffffffff 0000 0000 0000 00000000")
    refuse(response(None), 6, "null protocol_name")
    check(response(None), 7, "00000000 0019 ffffffff 00 00 01 01 01 00")


def test_fetch_aborted_transactions_are_null_or_empty_and_both_are_kept():
    for aborted, layout in ((None, "ffffffff"), ([], "00000000")):
        partition = FetchPartitionResult(
            partition_index=1, error_code=0, high_watermark=2, aborted_transactions=aborted
        )
        check(
            FetchResponse(responses=[FetchTopicResult(topic="t", partitions=[partition])]),
            4,
            "00000000 00000001 0001 74 00000001 00000001 0000 0000000000000002 ffffffffffffffff"
            f"{layout} ffffffff",
        )


def test_delete_topics_6_takes_topics_by_name_or_id():
    check(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1), 0, "00000001 0001 74 00000001")
    by_id = DeleteTopicsRequest(topics=[TopicToDelete(topic_id=TOPIC_ID)], timeout_ms=1)
    check(by_id, 6, f"02 00 {ID_BYTES} 00 00000001 00")
    refuse(by_id, 5, "topics")


STATE = "00000009 00000001 00000002 00000001 00000001 00000003 00000002 00000001 00000004"
COMPACT_STATE = "00000009 00000001 00000002 02 00000001 00000003 03 00000001 00000004"


def test_leader_and_isr_lists_partitions_by_topic_since_2_and_by_topic_id_since_5():
    def partition(**more):
        return LeaderAndIsrPartition(
            partition_index=8,
            controller_epoch=9,
            leader=1,
            leader_epoch=2,
            isr=[1],
            partition_epoch=3,
            replicas=[1, 4],
            **more,
        )

    leaders = [LiveLeader(broker_id=1, host_name="h", port=9092)]
    flat = LeaderAndIsrRequest(
        controller_id=6,
        controller_epoch=9,
        ungrouped_partition_states=[partition(topic_name="t")],
        live_leaders=leaders,
    )
    live = "00000001 00000001 0001 68 00002384"
    check(flat, 0, f"00000006 00000009 00000001 0001 74 00000008 {STATE} {live}")
    check(flat, 1, f"00000006 00000009 00000001 0001 74 00000008 {STATE} 00 {live}")
    grouped = LeaderAndIsrRequest(
        controller_id=6,
        controller_epoch=9,
        broker_epoch=7,
        topic_states=[LeaderAndIsrTopic(topic_name="t", partition_states=[partition()])],
        live_leaders=leaders,
    )
    check(
        grouped,
        2,
        f"00000006 00000009 0000000000000007 00000001 0001 74 00000001 00000008 {STATE} 00 {live}",
    )
    refuse(grouped, 1, "topic_states")
    grouped.type, grouped.is_kraft_controller = 1, True
    grouped.topic_states[0].topic_id = TOPIC_ID
    grouped.topic_states[0].partition_states[0].leader_recovery_state = 1
    check(
        grouped,
        7,
        f"00000006 01 00000009 0000000000000007 01 02 02 74 {ID_BYTES} 02 00000008 {COMPACT_STATE}"
        " 01 01 00 01 00  00  02 00000001 02 68 00002384 00  00",
    )


def test_leader_and_isr_answers_by_topic_id_since_5():
    result = LeaderAndIsrPartitionResult(topic_name="t", partition_index=8, error_code=11)
    flat = LeaderAndIsrResponse(error_code=0, partition_errors=[result])
    check(flat, 0, "0000 00000001 0001 74 00000008 000b")
    check(flat, 4, "0000 02 02 74 00000008 000b 00 00")
    result = LeaderAndIsrPartitionResult(partition_index=8, error_code=11)
    topic = LeaderAndIsrTopicResult(topic_id=TOPIC_ID, partition_errors=[result])
    check(
        LeaderAndIsrResponse(error_code=0, topics=[topic]),
        5,
        f"0000 02 {ID_BYTES} 02 00000008 000b 00 00 00",
    )


def test_stop_replica_names_its_partitions_in_three_ways():
    flat = StopReplicaRequest(
        controller_id=6,
        controller_epoch=9,
        delete_partitions=True,
        ungrouped_partitions=[UngroupedPartition(topic_name="t", partition_index=8)],
    )
    check(flat, 0, "00000006 00000009 01 00000001 0001 74 00000008")
    by_topic = StopReplicaRequest(
        controller_id=6,
        controller_epoch=9,
        broker_epoch=7,
        topics=[StoppedTopic(name="t", partition_indexes=[8])],
    )
    check(by_topic, 1, "00000006 00000009 0000000000000007 00 00000001 0001 74 00000001 00000008")
    stopped = StoppedPartition(partition_index=8, leader_epoch=2, delete_partition=True)
    by_state = StopReplicaRequest(
        controller_id=6,
        controller_epoch=9,
        broker_epoch=7,
        topic_states=[StoppedTopicState(topic_name="t", partition_states=[stopped])],
    )
    check(
        by_state, 3, "00000006 00000009 0000000000000007 02 02 74 02 00000008 00000002 01 00 00 00"
    )


def test_update_metadata_has_one_address_for_a_broker_in_0_and_endpoints_since_1():
    partition = UpdatedPartition(
        topic_name="t",
        partition_index=8,
        controller_epoch=9,
        leader=1,
        leader_epoch=2,
        isr=[1],
        zk_version=3,
        replicas=[1, 4],
    )
    old = UpdateMetadataRequest(
        controller_id=6,
        controller_epoch=9,
        ungrouped_partition_states=[partition],
        live_brokers=[LiveBroker(id=1, v0_host="h", v0_port=9092)],
    )
    check(
        old,
        0,
        f"00000006 00000009 00000001 0001 74 00000008 {STATE} 00000001 00000001 0001 68 00002384",
    )
    endpoint = Endpoint(port=9092, host="h", listener="L", security_protocol=1)
    partition.topic_name = ""
    new = UpdateMetadataRequest(
        controller_id=6,
        controller_epoch=9,
        broker_epoch=7,
        type=1,
        topic_states=[
            UpdatedTopic(topic_name="t", topic_id=TOPIC_ID, partition_states=[partition])
        ],
        live_brokers=[LiveBroker(id=1, endpoints=[endpoint], rack="r")],
    )
    check(
        new,
        8,
        f"00000006 00 00000009 0000000000000007 02 02 74 {ID_BYTES} 02 00000008 {COMPACT_STATE} 01"
        " 00  00  02 00000001 02 00002384 02 68 02 4c 0001 00 02 72 00  01 00 01 01",
    )


def test_controlled_shutdown_has_a_broker_epoch_since_2():
    request = ControlledShutdownRequest(broker_id=1)
    check(request, 0, "00000001")
    check(ControlledShutdownRequest(broker_id=1, broker_epoch=7), 2, "00000001 0000000000000007")
    remaining = RemainingPartition(topic_name="t", partition_index=8)
    response = ControlledShutdownResponse(error_code=0, remaining_partitions=[remaining])
    check(response, 0, "0000 00000001 0001 74 00000008")
    check(response, 3, "0000 02 02 74 00000008 00 00")
