"""What a start does with the files of a compaction that was cut short, and transactions' fates."""

from __future__ import annotations

from typing import Any

import pytest
from cleaning_world import CleaningWorld, pairs_in

from kdist.errors import UserError
from kdist.model import NO_OFFSET
from kdist.records.batch import read_header
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from kdist.records.control import ControlType, EndTransactionMarker
from kdist.storage.cleaning.pass_runner import READ_BYTES, PassRunner, RateLimit
from kdist.storage.cleaning.requests import (
    Fault,
    MapKeys,
    NoteProducers,
    Report,
    Rewrite,
    Source,
    decode_report,
    decode_request,
    encode_report,
    encode_request,
)
from kdist.storage.names import FileState, Suffix, segment_name
from kdist.testing.simulated_faults import Call, PowerLoss
from tests.unit.storage.storage_world import CLICKS, START_MS, World, overwrite
from tests.written_records import write_marker

A, B = b"a", b"b"
FAR = 1 << 62


def names_of(world: World, state: FileState) -> list[str]:
    return [name for name in world.names() if name.endswith(state)]


def prepared() -> CleaningWorld:
    """A world that was killed when its cleaner had written the one segment that is to remain."""
    world = CleaningWorld()
    world.put([(A, b"%d" % n) for n in range(10)])
    world.close_segment()
    log = world.log()
    sources = tuple(Source(each.base_offset, each.size) for each in log.segments)
    runner = PassRunner(world.files, world.clock, world.clock.wait_ms)
    mapped = runner.answer(MapKeys(log.directory, sources, 0, 10, 100, "00" * 16, FAR))
    assert (mapped.end_offset, mapped.keys) == (10, 1)
    left = runner.answer(Rewrite(sources[:-1], 0, 100, START_MS, 0, True))
    assert (left.is_changed, left.seen_records, left.kept_records) == (True, 10, 1)
    world.kill()
    return world


def rename(world: World, suffix: Suffix, old: FileState, new: FileState) -> None:
    directory = f"{world.path}/{CLICKS}/"
    files = world.files
    files.rename(directory + segment_name(0, suffix, old), directory + segment_name(0, suffix, new))


def test_what_was_being_written_is_removed() -> None:
    world = prepared()
    assert len(names_of(world, FileState.CLEANED)) == 3
    log = world.open().logs[CLICKS]
    assert len(pairs_in(log)) == 10
    assert not names_of(world, FileState.CLEANED)


def test_a_whole_swap_takes_the_place_of_all_that_it_covers() -> None:
    world = prepared()
    for suffix in (Suffix.INDEX, Suffix.TIME_INDEX, Suffix.LOG):
        rename(world, suffix, FileState.CLEANED, FileState.SWAP)
    log = world.open().logs[CLICKS]
    assert pairs_in(log) == [(9, A, b"9")]
    assert [each.base_offset for each in log.segments] == [0, 10]
    assert not names_of(world, FileState.SWAP)
    log = world.restart().logs[CLICKS]
    assert pairs_in(log) == [(9, A, b"9")]


def test_indexes_without_their_swap_are_removed() -> None:
    world = prepared()
    rename(world, Suffix.INDEX, FileState.CLEANED, FileState.SWAP)
    assert len(pairs_in(world.open().logs[CLICKS])) == 10
    assert not names_of(world, FileState.SWAP)


def test_a_swap_beside_what_is_still_being_written_is_undone() -> None:
    """So Kafka leaves it while it splits a segment, which is still there whole."""
    world = prepared()
    rename(world, Suffix.LOG, FileState.CLEANED, FileState.SWAP)
    assert len(pairs_in(world.open().logs[CLICKS])) == 10
    assert not names_of(world, FileState.SWAP)


@pytest.mark.parametrize("change", range(1, 21))
def test_what_a_pass_has_left_does_not_undo_a_later_swap(change: int) -> None:
    """A pass that is given up beside a truncation leaves its `.cleaned`, and the power may go."""
    world = CleaningWorld()
    log = world.put([(b"%d" % number, b"x" * 60) for number in range(6)])
    world.put([(A, b"%d" % number + bytes(60)) for number in range(3)])
    world.close_segment()
    before = pairs_in(log)
    overwrite(world.disk, world.path_of(1, Suffix.LOG) + FileState.CLEANED, b"left")
    world.files.sync_directory(log.directory)

    def changes_names(call: Call) -> bool:
        is_ours = call.path.startswith(log.directory)
        return is_ours and call.name in ("rename", "remove", "sync_directory")

    world.disk.crash_at(change, changes_names)
    world.cleaner.start()
    with pytest.raises(PowerLoss):
        world.settle(5_000)
    world.files = world.disk.power_on(world.rng)
    assert pairs_in(world.open().logs[CLICKS]) in (before, [*before[:6], before[-1]])


def test_a_damaged_swap_is_refused_in_a_sentence_and_left_for_a_person() -> None:
    world = prepared()
    for suffix in (Suffix.INDEX, Suffix.TIME_INDEX, Suffix.LOG):
        rename(world, suffix, FileState.CLEANED, FileState.SWAP)
    overwrite(world.disk, world.path_of(0, Suffix.LOG) + ".swap", b"garbage" * 20)
    before = world.names()
    with pytest.raises(UserError, match=r"\.log\.swap is damaged"):
        world.open()
    assert world.names() == before


# A pass by itself


def rewritten(
    world: CleaningWorld, slot_count: int = 100, **rules: Any
) -> tuple[list[Report], list[bytes]]:
    """The reports of a pass over all closed segments as one, and the batches that it left."""
    log = world.log()
    sources = tuple(Source(each.base_offset, each.size) for each in log.segments)
    runner = PassRunner(world.files, world.clock, world.clock.wait_ms)
    end = log.active.base_offset
    mapped = runner.answer(MapKeys(log.directory, sources, 0, end, slot_count, "07" * 16, FAR))
    request = Rewrite(sources[:-1], 0, 100, START_MS, 1_000, True)._replace(**rules)
    report = runner.answer(request)
    path = f"{log.directory}/{segment_name(0, Suffix.LOG)}"
    file = world.files.open(path + ".cleaned" if report.is_changed else path)
    data, at, found = file.read(0, file.size()), 0, list[bytes]()
    while at < len(data):
        size = read_header(data, at).size
        found.append(data[at : at + size])
        at += size
    return [mapped, report], found


def put_transaction(
    world: CleaningWorld, pairs: list[tuple[bytes, bytes]], ending: ControlType, **fields: Any
) -> None:
    """A transaction of producer 5, a batch for each pair, and its marker."""
    transaction = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
    log = world.log()
    for pair in pairs:
        offset = log.end_offset
        batch = build_batch(
            [pair[1]],
            [pair[0]],
            timestamp_ms=START_MS,
            base_offset=offset,
            base_sequence=offset,
            leader_epoch=0,
            **transaction,
            **fields,
        )
        log.complete_append(log.prepare_as_follower([batch], 0, START_MS), START_MS)
    key, value = write_marker(EndTransactionMarker(ending, 0))
    marker = build_batch(
        [value],
        [key],
        timestamp_ms=START_MS,
        base_offset=log.end_offset,
        leader_epoch=0,
        is_control=True,
        **transaction,
    )
    log.complete_append(log.prepare_as_follower([marker], 0, START_MS), START_MS)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_an_aborted_record_neither_stays_nor_counts(codec: Codec) -> None:
    world = CleaningWorld()
    world.put([(A, b"good"), (B, b"old")])
    put_transaction(world, [(A, b"aborted")], ControlType.ABORT, codec=codec)
    put_transaction(world, [(B, b"new")], ControlType.COMMIT, codec=codec)
    world.close_segment()
    _, left = rewritten(world)
    kept = [each for batch in left for each in read_batch(batch)]
    is_control = [read_header(batch).is_control for batch in left]
    assert kept[0].value == b"good"
    assert [each.offset for each in kept] == [0, 3, 4, 5]
    assert is_control == [False, True, False, True]


def test_a_marker_goes_a_while_after_all_of_its_transaction_is_gone() -> None:
    world = CleaningWorld()
    put_transaction(world, [(A, b"1")], ControlType.COMMIT)
    world.put([(A, b"2")])
    world.close_segment()
    horizons = []
    for now_ms in (START_MS, START_MS + 1, START_MS + 500, START_MS + 1_500):
        _, left = rewritten(world, now_ms=now_ms)
        headers = [read_header(batch) for batch in left]
        horizons.append([each.has_delete_horizon for each in headers if each.is_control])
        overwrite(world.disk, world.path_of(0, Suffix.LOG), b"".join(left))
        world.log().segments[0].size = len(b"".join(left))
    # With its data; without; then its horizon stands; then it is past.
    assert horizons == [[False], [True], [True], []]


def test_a_map_that_is_full_ends_the_pass_early_and_the_next_goes_on_there() -> None:
    world = CleaningWorld()
    world.put([(b"%d" % n, b"x") for n in range(8)] + [(b"0", b"y")])
    world.close_segment()
    reports, left = rewritten(world, slot_count=6)
    assert (reports[0].keys, reports[0].end_offset) == (5, 5)
    assert len(left) == 9  # the later record of key 0 is not known of yet


def test_a_group_that_loses_nothing_is_not_written() -> None:
    world = CleaningWorld()
    world.put([(A, b"1"), (B, b"2")])
    world.close_segment()
    log = world.log()
    sources = tuple(Source(each.base_offset, each.size) for each in log.segments)
    runner = PassRunner(world.files, world.clock, world.clock.wait_ms)
    runner.answer(MapKeys(log.directory, sources, 0, 2, 100, "00" * 16, FAR))
    report = runner.answer(Rewrite(sources[:1], 0, 100, START_MS, 0, True))
    assert not report.is_changed
    assert not names_of(world, FileState.CLEANED)


def test_a_batch_larger_than_a_read_is_cleaned() -> None:
    world = CleaningWorld()
    big = bytes(READ_BYTES + 5)
    world.put([(A, big), (B, big), (A, b"last")])
    world.close_segment()
    _, left = rewritten(world)
    assert [each.value for batch in left for each in read_batch(batch)] == [big, b"last"]


def test_a_log_that_is_gone_is_no_damage() -> None:
    world = CleaningWorld()
    runner = PassRunner(world.files, world.clock, world.clock.wait_ms)
    asked = MapKeys(f"{world.path}/gone-0", (Source(0, 10),), 0, 1, 100, "00" * 16, FAR)
    assert runner.answer(asked).fault == Fault.GONE


def test_requests_and_reports_survive_their_lines() -> None:
    asked = MapKeys("/d/t-0", (Source(0, 10), Source(5, 7)), 0, 5, 100, "00" * 16, FAR)
    assert decode_request(encode_request(asked)) == asked
    noted = NoteProducers(((1, 2), (3, 4)), ((5, NO_OFFSET),))
    assert decode_request(encode_request(noted)) == noted
    rewrite = Rewrite((Source(0, 10),), 1, 2, 3, 4, True)
    assert decode_request(encode_request(rewrite)) == rewrite
    report = Report(fault=Fault.FULL, reason="no room", read_bytes=7)
    assert decode_report(encode_report(report)) == report


def test_the_throttle_keeps_to_its_rate() -> None:
    world = World()
    limit = RateLimit(1_000_000, world.clock.monotonic_ns, world.clock.wait_ms)
    began_ns = world.clock.monotonic_ns()
    for _ in range(500):
        limit.take(10_000)
    took_ns = world.clock.monotonic_ns() - began_ns
    assert 4.9e9 < took_ns < 5.1e9
