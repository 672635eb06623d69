"""Produce: every version and acks, each partition with its own answer, on fast and slow disks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kdist.broker.fast_path.produce import _Coalesced
from kdist.broker.handlers.produce import ProduceHandler
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.redirection import LeaderHints
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.frame import decode_response, encode_response
from kdist.protocol.produce import (
    API,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from kdist.records.batch import Batch, read_header
from kdist.records.compression import Codec
from kdist.records.record import Record
from tests.unit.replication.replication_world import (
    BROKER,
    CLICKS,
    START_MS,
    VIEWS,
    Client,
    World,
    batch,
    values_in,
)
from tests.written_records import write_message_set

Records = bytes | bytearray | None
OLD, NEW = range(3), range(3, 12)  # versions: message sets, record batches


@pytest.fixture
def world() -> World:
    return World()


class Call:
    """One request on its way, and its answers."""

    listener = "PLAINTEXT"

    def __init__(
        self,
        world: World,
        parts: Sequence[tuple[TopicPartition, Records]],
        version: int = 9,
        acks: int = 1,
        timeout_ms: int = 1000,
        transactional_id: str | None = None,
        cache: MetadataCache | None = None,
    ) -> None:
        self.client = self.connection = Client()
        self.version = version
        self.answers: list[ProduceResponse | None] = []
        self.answer = self.answers.append
        topics = [
            ProduceTopic(
                name=key.topic,
                partition_data=[ProducePartition(index=key.partition, records=records)],
            )
            for key, records in parts
        ]
        request = ProduceRequest(
            transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics
        )
        hints = LeaderHints(world.replicas, cache or MetadataCache())
        handler = ProduceHandler(world.replicas, hints, world.clock)
        handler.handle(request, self)

    def crash(self, error: BaseException) -> None:
        raise error

    @property
    def results(self) -> list[ProducePartitionResult]:
        """As a client of the version reads them."""
        (answer,) = self.answers
        assert answer is not None
        frame = encode_response(self.version, 1, answer)
        _, read = decode_response(API, self.version, memoryview(frame)[4:])
        return [result for topic in read.responses for result in topic.partition_responses]

    @property
    def errors(self) -> list[int]:
        return [result.error_code for result in self.results]


def produce(world: World, records: Records, version: int = 9, acks: int = 1) -> Call:
    """A request for one partition."""
    return Call(world, [(CLICKS, records)], version, acks)


def stored(world: World) -> list[bytes | None]:
    log = world.replicas.partitions[CLICKS].log
    if not log.has_files:
        return []
    file = log.active.file
    return [value for _, value in values_in(file.read(0, file.size()))]


def messages(*values: bytes, magic: int, codec: Codec = Codec.NONE) -> bytes:
    records = [Record(n, START_MS + n, b"k", value) for n, value in enumerate(values)]
    return write_message_set(records, magic, codec)


# --- versions and formats -------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", NEW)
def test_every_version_takes_batches(world: World, version: int, acks: int) -> None:
    world.lead()
    produce(world, batch([b"a", b"b"]), version, acks)
    (result,) = produce(world, batch([b"c"]), version, acks).results
    assert (result.error_code, result.base_offset, result.log_append_time_ms) == (0, 2, -1)
    assert result.log_start_offset == (0 if version >= 5 else -1)
    assert stored(world) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("version", OLD)
def test_old_versions_take_message_sets(
    world: World, version: int, magic: int, codec: Codec
) -> None:
    world.lead()
    (result,) = produce(world, messages(b"a", b"b", magic=magic, codec=codec), version).results
    assert (result.error_code, result.base_offset) == (0, 0)
    assert stored(world) == [b"a", b"b"]


def test_old_and_new_formats_share_a_partition(world: World) -> None:
    world.lead()
    calls = [
        produce(world, messages(b"0", magic=0), 0),
        produce(world, batch([b"2"], codec=Codec.ZSTD), 7),
        produce(world, messages(b"1", magic=1, codec=Codec.GZIP), 2),
        produce(world, batch([b"2"]), 9),
    ]
    assert [call.results[0].base_offset for call in calls] == [0, 1, 2, 3]
    assert stored(world) == [b"0", b"2", b"1", b"2"]


@pytest.mark.parametrize("records", [b"", None])
def test_before_version_3_an_empty_message_set_is_no_error(world: World, records: Records) -> None:
    world.lead()
    (result,) = produce(world, records, 2).results
    assert (result.error_code, result.base_offset) == (0, -1)
    assert produce(world, records, 3).errors == [Error.INVALID_RECORD]


def test_records_in_a_read_only_buffer_are_accepted(world: World) -> None:
    world.lead()
    assert produce(world, bytes(batch([b"a"]))).errors == [0]
    assert stored(world) == [b"a"]


@pytest.mark.parametrize("version", NEW)
def test_log_append_time_is_returned_where_the_broker_sets_it(world: World, version: int) -> None:
    world.lead(message_timestamp_type="LogAppendTime")
    world.clock.advance_ms(500)
    data = batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0)
    again = bytes(data)
    assert produce(world, data, version).results[0].log_append_time_ms == START_MS + 500
    world.clock.advance_ms(500)
    assert produce(world, again, version).results[0].log_append_time_ms == START_MS + 500


# --- acks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [-2, 2, 99])
def test_other_acks_are_refused_for_each_partition(world: World, acks: int) -> None:
    world.lead()
    call = Call(world, [(CLICKS, batch([b"a"])), (VIEWS, batch([b"a"]))], acks=acks)
    assert call.errors == [Error.INVALID_REQUIRED_ACKS] * 2
    assert stored(world) == []


def test_transactional_batches_are_refused(world: World) -> None:
    world.lead()
    error = Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    call = Call(world, [(CLICKS, batch([b"a"]))], transactional_id="t")
    assert call.errors == [error]
    fields = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
    assert produce(world, batch([b"a"], is_transactional=True, **fields)).errors == [error]
    assert stored(world) == []


def test_acks_0_is_appended_and_not_answered(world: World) -> None:
    world.lead()
    call = produce(world, batch([b"a"]), acks=0)
    assert call.answers == [None]
    assert not call.client.is_closed
    assert stored(world) == [b"a"]


def test_an_error_with_acks_0_closes_the_connection(world: World) -> None:
    world.lead()
    call = Call(world, [(CLICKS, batch([b"a"])), (VIEWS, batch([b"a"]))], acks=0)
    assert call.answers == [None]
    assert call.client.is_closed
    assert stored(world) == [b"a"]


def test_acks_all_waits_for_the_flush_and_acks_1_does_not(world: World) -> None:
    world.lead(flush_before_expose=True)
    careful, quick = produce(world, batch([b"a"]), acks=-1), produce(world, batch([b"b"]))
    assert careful.answers == []
    assert quick.errors == [0]
    world.settle()
    assert careful.errors == [0]
    assert world.replicas.partitions[CLICKS].high_watermark == 2


def test_acks_all_of_several_partitions_waits_for_all(world: World) -> None:
    world.lead(flush_before_expose=True)
    world.lead(VIEWS)
    call = Call(world, [(CLICKS, batch([b"a"])), (VIEWS, batch([b"b"]))], acks=-1)
    assert call.answers == []
    world.settle()
    assert call.errors == [0, 0]


def test_acks_all_times_out_with_the_records_appended(world: World) -> None:
    world.lead(flush_before_expose=True)
    call = Call(world, [(CLICKS, batch([b"a"]))], acks=-1, timeout_ms=0)
    world.settle()
    (result,) = call.results
    assert (result.error_code, result.base_offset) == (Error.REQUEST_TIMED_OUT, -1)
    assert stored(world) == [b"a"]


def test_acks_all_is_refused_below_min_insync_replicas(world: World) -> None:
    world.lead(replicas=(BROKER, BROKER + 1), min_insync_replicas=2)
    assert produce(world, batch([b"a"]), acks=-1).errors == [Error.NOT_ENOUGH_REPLICAS]
    assert produce(world, batch([b"a"]), acks=1).errors == [0]


def test_a_disconnected_client_is_not_answered(world: World) -> None:
    world.lead(flush_before_expose=True)
    call = produce(world, batch([b"a"]), acks=-1)
    world.replicas.delayed.cancel_all(call.client)
    world.settle(5000)
    assert call.answers == []
    assert len(world.replicas.delayed) == 0


# --- errors ---------------------------------------------------------------------------------------


def test_each_partition_has_its_own_error(world: World) -> None:
    world.lead()
    world.known.add(TopicPartition("elsewhere", 0))
    broken = batch([b"a"])
    broken[-1] ^= 1
    call = Call(
        world,
        [
            (TopicPartition("nothing", 0), batch([b"a"])),
            (CLICKS, batch([b"good"])),
            (TopicPartition("elsewhere", 0), batch([b"a"])),
            (CLICKS, broken),
            (CLICKS, batch([bytes(2 << 20)])),
            (TopicPartition("__consumer_offsets", 0), batch([b"a"])),
        ],
    )
    assert call.errors == [
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.NONE,
        Error.NOT_LEADER_OR_FOLLOWER,
        Error.CORRUPT_MESSAGE,
        Error.MESSAGE_TOO_LARGE,
        Error.INVALID_TOPIC_EXCEPTION,
    ]
    assert stored(world) == [b"good"]
    assert world.metrics.failed_produces == 5


@pytest.mark.parametrize("version", range(10))
def test_an_error_goes_out_in_every_version(world: World, version: int) -> None:
    (result,) = produce(world, batch([b"a"]), version).results
    assert (result.error_code, result.base_offset) == (Error.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert bool(result.error_message) == (version >= 8)


def test_clients_may_not_write_to_the_brokers_own_topics(world: World) -> None:
    key = TopicPartition("__consumer_offsets", 0)
    world.lead(key)
    assert Call(world, [(key, batch([b"a"]))]).errors == [Error.INVALID_TOPIC_EXCEPTION]


@pytest.mark.parametrize("version", [7, 8])
def test_version_8_names_the_invalid_records(world: World, version: int) -> None:
    world.lead(cleanup_policy=("compact",))
    data = batch([b"a", b"b", b"c"], keys=[b"k", None, None])
    (result,) = produce(world, data, version).results
    assert result.error_code == Error.INVALID_RECORD
    assert not (result.error_message or "").startswith("INVALID_RECORD")  # the code says that
    assert (result.error_message is not None) == (version == 8)
    blamed = [each.batch_index for each in result.record_errors]
    assert blamed == ([1, 2] if version == 8 else [])


def test_zstd_is_refused_before_version_7(world: World) -> None:
    world.lead()
    data = batch([b"a"], codec=Codec.ZSTD)
    assert produce(world, data, 6).errors == [Error.UNSUPPORTED_COMPRESSION_TYPE]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_full_disk_is_an_error_of_the_partition_until_there_is_room(
    world: World, acks: int
) -> None:
    world.lead()
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    call = produce(world, batch([b"lost"]), acks=acks)
    world.disk.heal()
    if acks:
        assert call.errors == [Error.KAFKA_STORAGE_ERROR]
    else:
        assert call.client.is_closed
    assert produce(world, batch([b"kept"])).results[0].base_offset == 0
    assert stored(world) == [b"kept"]


# --- idempotent producers -------------------------------------------------------------------------


def sequence(number: int, *values: bytes, epoch: int = 0) -> bytearray:
    return batch(values, producer_id=7, producer_epoch=epoch, base_sequence=number)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_duplicate_gets_its_original_offset(world: World, acks: int) -> None:
    world.lead()
    for number in range(5):
        produce(world, sequence(number, b"%d" % number), acks=acks)
    for number in range(5):
        (result,) = produce(world, sequence(number, b"%d" % number), acks=acks).results
        assert (result.error_code, result.base_offset) == (0, number)
    assert stored(world) == [b"0", b"1", b"2", b"3", b"4"]


def test_gaps_and_old_epochs_are_refused(world: World) -> None:
    world.lead()
    produce(world, sequence(0, b"a", epoch=1))
    gap = produce(world, sequence(2, b"b", epoch=1))
    assert gap.errors == [Error.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert produce(world, sequence(1, b"b")).errors == [Error.INVALID_PRODUCER_EPOCH]


def test_producers_are_known_after_a_restart(world: World) -> None:
    world.lead()
    produce(world, sequence(0, b"a"))
    world.restart()
    world.tell()
    (result,) = produce(world, sequence(0, b"a")).results
    assert (result.error_code, result.base_offset) == (0, 0)
    assert produce(world, sequence(1, b"b")).results[0].base_offset == 1


def not_hosted_yet(world: World) -> Error:
    world.known.add(CLICKS)
    return Error.NOT_LEADER_OR_FOLLOWER


def led_elsewhere(world: World) -> Error:
    world.tell(leader=2)
    return Error.NOT_LEADER_OR_FOLLOWER


def written_by_others(world: World) -> Error:
    world.lead()
    produce(world, batch([b"another's"]))
    world.tell(leader=2, leader_epoch=1)
    return Error.NOT_LEADER_OR_FOLLOWER


def on_a_full_disk(world: World) -> Error:
    world.lead()
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    return Error.KAFKA_STORAGE_ERROR


def on_a_full_slow_disk(world: World) -> Error:
    partition = world.lead()
    partition._context.writers.thread_until_ns = world.clock.monotonic_ns() + 10**10
    return on_a_full_disk(world)


REFUSALS = (not_hosted_yet, led_elsewhere, written_by_others, on_a_full_disk, on_a_full_slow_disk)


def accept(world: World) -> None:
    """End the reason for which the partition's batches were refused."""
    world.settle()
    world.disk.heal()
    world.tell(leader_epoch=2)


@pytest.mark.parametrize("refusing", REFUSALS)
def test_no_batch_is_taken_before_an_earlier_one_that_was_refused(
    world: World, refusing: Callable[[World], Error]
) -> None:
    """The earlier one was out of sequence then, however often it was sent again (KAFKA-15591)."""
    error = refusing(world)
    first = produce(world, sequence(0, *[b"a"] * 17))
    accept(world)
    assert first.errors == [error]
    behind = [produce(world, sequence(number, b"b")) for number in (17, 18, 19, 20)]
    again = [produce(world, sequence(0, *[b"a"] * 17)), produce(world, sequence(17, b"b"))]
    world.settle()
    assert [call.errors for call in behind] == [[Error.OUT_OF_ORDER_SEQUENCE_NUMBER]] * 4
    assert [call.errors for call in again] == [[Error.NONE]] * 2
    assert stored(world)[-18:] == [b"a"] * 17 + [b"b"]
    assert not world.replicas.refused.noted


def test_a_batch_that_its_producer_has_given_up_holds_up_five_others_at_most(world: World) -> None:
    led_elsewhere(world)
    produce(world, sequence(7, b"given up"))
    accept(world)
    errors = [produce(world, sequence(8 + n, b"b")).errors for n in range(5)]
    assert errors == [[Error.OUT_OF_ORDER_SEQUENCE_NUMBER]] * 5
    assert produce(world, sequence(13, b"c")).errors == [Error.NONE]
    assert not world.replicas.refused.noted


def test_a_new_epoch_and_other_producers_and_partitions_are_not_held_up(world: World) -> None:
    led_elsewhere(world)
    produce(world, sequence(0, b"a"))
    accept(world)
    world.lead(VIEWS)
    assert produce(world, batch([b"b"], producer_id=8, base_sequence=5)).errors == [Error.NONE]
    views = Call(world, [(VIEWS, sequence(5, b"c"))])
    assert views.errors == [Error.NONE]
    assert produce(world, sequence(3, b"d", epoch=1)).errors == [Error.NONE]


def test_only_so_many_refused_batches_are_noted(world: World) -> None:
    led_elsewhere(world)
    for number in range(1_500):
        produce(world, batch([b"a"], producer_id=number, base_sequence=0))
        Call(world, [(TopicPartition(f"none-{number}", 0), sequence(0, b"a"))])
    produce(world, b"no batch")
    produce(world, None)
    assert len(world.replicas.refused.noted) == 1_000


def test_of_batches_that_share_a_write_none_is_taken_before_a_refused_one(world: World) -> None:
    partition = world.lead()
    coalesced = _Coalesced(CLICKS)
    coalesced.partition = partition
    for data in (sequence(0, b"a"), sequence(1, b"b"), batch([b"c"])):
        coalesced.batches.append(Batch(read_header(data), memoryview(data)))
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    coalesced.append(world.clock.now_ms())
    outcomes = [getattr(outcome, "error", Error.NONE) for outcome in coalesced.outcomes]
    refused = [Error.KAFKA_STORAGE_ERROR, Error.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert outcomes == [*refused, Error.NONE]
    assert stored(world) == [b"c"]


# --- a slow disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_on_a_slow_disk_the_answer_follows_the_threads_write(
    world: World, acks: int, parts: int
) -> None:
    partition = world.lead()
    partition._context.writers.thread_until_ns = world.clock.monotonic_ns() + 10**10
    data: list[tuple[TopicPartition, Records]] = [(CLICKS, batch([b"a"])) for _ in range(parts)]
    call = Call(world, data, acks=acks)
    assert call.answers == []
    world.settle()
    if acks:
        assert [result.base_offset for result in call.results] == list(range(parts))
    else:
        assert call.answers == [None]
    assert stored(world) == [b"a"] * parts


@pytest.mark.parametrize(("acks", "error"), [(1, Error.NONE), (-1, Error.NOT_LEADER_OR_FOLLOWER)])
def test_acks_all_gets_no_yes_if_leadership_changes_during_the_threads_write(
    world: World, acks: int, error: Error
) -> None:
    partition = world.lead(replicas=(BROKER, 2))
    partition._context.writers.thread_until_ns = world.clock.monotonic_ns() + 10**10
    call = produce(world, batch([b"a"]), acks=acks)
    state = partition.state._replace(leader=2, leader_epoch=1)
    partition.lead_or_follow(state, partition.replicas)
    assert call.answers == []
    world.settle()
    assert call.errors == [error]


def test_a_disk_that_fills_up_during_the_threads_write_is_an_error_of_the_partition(
    world: World,
) -> None:
    partition = world.lead()
    partition._context.writers.thread_until_ns = world.clock.monotonic_ns() + 10**10
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    call = produce(world, batch([b"a"]))
    world.settle()
    assert call.errors == [Error.KAFKA_STORAGE_ERROR]


def test_a_request_without_topics_is_answered(world: World) -> None:
    call: Any = Call(world, [])
    assert call.results == []
