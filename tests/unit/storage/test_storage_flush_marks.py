"""A log's flush mark: it is there only while all that the log ever exposed is flushed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from storage_world import CLICKS, TOPIC_ID, World, append, expected_lines, lines, overwrite

from kdist.config.topic import TopicSettings
from kdist.errors import DiskFailed, DiskFull
from kdist.model import TopicPartition
from kdist.storage.directory import Schedule
from kdist.storage.flushing import SYNC_FILESYSTEM_FROM
from kdist.storage.log import Log
from kdist.storage.names import flush_mark_in, flush_mark_name
from kdist.testing.simulated_faults import Call, PowerLoss

FIRST = TopicSettings(flush_before_expose=True)
PLAIN = TopicSettings()
BOTH = [1, SYNC_FILESYSTEM_FROM]  # logs, flushed by a sync of each, or of the filesystem


def opened(topic: TopicSettings = PLAIN, seed: int = 0) -> World:
    """A world whose content a controller has judged the replicas by."""
    world = World(seed=seed, topic=topic)
    judge(world)
    return world


def judge(world: World) -> None:
    """A controller judges the replicas, and the broker is killed and started."""
    directory = world._directory or world.open()
    world.settle()
    world.vetted = directory.content_id
    world.kill()
    world.open()


def filled(world: World, count: int = 1, topic: TopicSettings = PLAIN) -> list[Log]:
    """New logs of three records each, of which none is flushed."""
    world.topic = topic
    logs = []
    for number in range(count):
        logs.append(world.directory.create(TopicPartition("clicks", number), TOPIC_ID, topic))
        append(world, logs[-1], 3)
    return logs


def configure(world: World, logs: list[Log], topic: TopicSettings) -> None:
    world.topic = topic
    for log in logs:
        log.configure(topic)


def lose_power(world: World, boot_id: str = "boot 2") -> dict[str, set[int]]:
    """The host goes down, and the broker starts again; the partitions that it says are flushed."""
    world.disk.heal()
    world.lose_power()
    world.boot_id = boot_id
    return world.open().flushed


def marks(world: World) -> list[str]:
    found = (flush_mark_in(name) for name in world.names())
    return [each for each in found if each is not None]


def changing(call: Call) -> bool:
    return call.name in ("create", "write", "sync", "rename", "remove", "sync_directory")


@pytest.mark.parametrize("count", BOTH)
def test_a_log_that_is_flushed_first_from_the_beginning_loses_nothing(count: int) -> None:
    world = opened()
    logs = filled(world, count, FIRST)
    assert marks(world) == [world.directory.content_id]
    for log in logs:
        world.directory.flusher.request(log)
    world.settle()
    assert lose_power(world) == {"clicks": {*range(count)}}
    assert [lines(log) for log in world.directory.logs.values()] == [expected_lines(3)] * count


@pytest.mark.parametrize("count", BOTH)
def test_a_log_that_nobody_appends_to_is_marked_once_the_setting_comes(count: int) -> None:
    world = opened()
    logs = filled(world, count)
    configure(world, logs, FIRST)
    assert all(log.is_flushed_first for log in logs)
    assert marks(world) == []
    world.settle()
    assert [log.flush_mark for log in logs] == [world.directory.content_id] * count
    assert not world.directory.log_context.unflushed
    assert lose_power(world) == {"clicks": {*range(count)}}
    assert [lines(log) for log in world.directory.logs.values()] == [expected_lines(3)] * count


def test_a_setting_that_comes_after_the_loss_makes_no_log_trusted() -> None:
    world = opened()
    filled(world)
    world.topic = FIRST
    assert lose_power(world) == {}


def test_a_log_that_a_power_loss_takes_whole_is_not_trusted() -> None:
    left = set()
    for seed in range(20):
        world = opened(seed=seed)
        logs = filled(world, 2)
        configure(world, logs[:1], FIRST)
        world.settle()
        assert lose_power(world) == {"clicks": {0}}
        left.add(len(world.directory.logs))
    assert left == {1, 2}


@pytest.mark.parametrize("count", BOTH)
def test_a_mark_is_on_the_disk_only_once_all_is_flushed(count: int) -> None:
    trusted = set()
    for number in range(1, 200):
        world = opened(seed=number)
        logs = filled(world, count)
        configure(world, logs, FIRST)
        world.disk.crash_at(number, changing)
        try:
            world.settle()
        except PowerLoss:
            world.files = world.disk.power_on(random.Random(number))
        else:
            break
        world.boot_id = "boot 2"
        for partition in world.open().flushed.get("clicks", ()):
            trusted.add(partition)
            log = world.directory.logs[TopicPartition("clicks", partition)]
            assert lines(log) == expected_lines(3)
    assert trusted
    assert lose_power(world) == {"clicks": {*range(count)}}


@pytest.mark.parametrize("count", BOTH)
def test_nothing_is_exposed_unflushed_before_the_mark_is_durably_gone(count: int) -> None:
    gone = set()
    for number in range(1, 200):
        world = opened(seed=number)
        logs = filled(world, count, FIRST)
        for log in logs:
            world.directory.flusher.request(log)
        world.settle()
        configure(world, logs, PLAIN)
        world.disk.crash_at(number, changing)
        try:
            world.settle()
        except PowerLoss:
            world.files = world.disk.power_on(random.Random(number))
        else:
            assert not any(log.is_flushed_first for log in logs)
            break
        assert all(log.is_flushed_first for log in logs)
        world.boot_id = "boot 2"
        gone |= {*range(count)} - {*world.open().flushed.get("clicks", ())}
    assert gone == set(range(count))
    assert lose_power(world) == {}


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_mark_whose_removal_was_cut_short_does_not_come_back_with_a_power_loss(
    is_full: bool, is_clean: bool
) -> None:
    """Or that Apache Kafka removed, which then stopped cleanly."""
    for seed in range(20):
        world = opened(seed=seed)
        logs = filled(world, 1, FIRST)
        world.flush(logs[0])
        world.wait(world.directory.saver.request)
        if is_clean:
            world.stop()
        else:
            world.directory._lock.release()  # the process is killed
        world.disk.remove(logs[0].flush_mark_path)
        world.topic = PLAIN
        if is_full:
            world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
        log = world.open().logs[CLICKS]
        assert not log.is_flushed_first
        world.disk.heal()
        append(world, log, 3)  # which is exposed now
        assert lose_power(world) == {}


@pytest.mark.parametrize("count", BOTH)
@pytest.mark.parametrize("name", ["create", "write", "rename", "sync_directory"])
def test_a_mark_that_finds_no_room_fails_no_flush_and_comes_later(name: str, count: int) -> None:
    world = opened()
    logs = filled(world, count)
    for log in logs:
        world.directory.flusher.request(log)
    world.settle()
    before = world.disk.calls["rename"]
    world.disk.fail(errno.EMFILE, when=lambda call: call.name == name)
    configure(world, logs, FIRST)
    heard: list[BaseException | None] = []
    world.directory.flusher.request(logs[0], heard.append)
    world.settle()
    is_synced_at_once = name == "sync_directory" and count > 1
    assert heard == [None]
    assert world.failures == []
    if not is_synced_at_once:
        assert [log.flush_mark for log in logs] == [None] * count
    world.disk.heal()
    schedule = Schedule(world.directory, lambda log: log.end_offset)
    schedule.flush_due()
    world.settle()
    assert [log.flush_mark for log in logs] == [world.directory.content_id] * count
    assert world.disk.calls["rename"] > before


@pytest.mark.parametrize("name", ["list", "remove", "sync_directory"])
def test_a_log_whose_mark_cannot_be_removed_goes_on_flushing_first(name: str) -> None:
    world = opened()
    logs = filled(world, 1, FIRST)
    world.directory.flusher.request(logs[0])
    world.settle()
    world.disk.fail(errno.EMFILE, when=lambda call: call.name == name)
    configure(world, logs, PLAIN)
    world.settle()
    assert logs[0].is_flushed_first
    assert world.failures == []
    configure(world, logs, FIRST)  # of whose mark nobody knows whether it is there
    world.disk.heal()
    world.settle()
    Schedule(world.directory, lambda log: log.end_offset).flush_due()
    world.settle()
    assert marks(world) == [world.directory.content_id]
    configure(world, logs, PLAIN)
    world.settle()
    assert (logs[0].is_flushed_first, marks(world)) == (False, [])


@pytest.mark.parametrize("before", [PLAIN, FIRST])
def test_a_disk_that_fails_as_a_mark_changes_is_reported(before: TopicSettings) -> None:
    world = opened()
    logs = filled(world, 1, before)
    world.directory.flusher.request(logs[0])
    world.settle()
    world.disk.fail(when=lambda call: call.name == "sync_directory")
    configure(world, logs, PLAIN if before is FIRST else FIRST)
    world.settle()
    assert [type(error) for error in world.failures] == [DiskFailed]
    assert (logs[0].is_flushed_first, logs[0].is_busy) == (True, True)


def exposed(log: Log) -> int:
    """Up to where the log may be told of."""
    return log.recovery_point if log.is_flushed_first else log.end_offset


@pytest.mark.parametrize(
    "changes",
    [(FIRST, PLAIN), (FIRST, PLAIN, FIRST), (PLAIN, FIRST), (PLAIN, FIRST, PLAIN)],
    ids=lambda given: "".join("on " if each is FIRST else "off " for each in given),
)
@pytest.mark.parametrize("number", range(12))
def test_a_setting_that_changes_while_the_log_is_flushed_leaves_no_untrue_mark(
    changes: tuple[TopicSettings, ...], number: int
) -> None:
    """Records come between all of it, and what is exposed is noted at each moment."""
    world = opened(seed=number)
    (log,) = filled(world, 1, PLAIN if changes[0] is FIRST else FIRST)
    told = 0
    rng = random.Random(number)
    for topic in changes:
        configure(world, [log], topic)
        append(world, log)
        told = max(told, exposed(log))
        world.settle(rng.uniform(0, 15))
        append(world, log)
        told = max(told, exposed(log))
    flushed = lose_power(world)
    if flushed:
        assert world.directory.logs[CLICKS].end_offset >= told


def test_a_flush_that_began_before_the_setting_came_writes_no_mark() -> None:
    world = opened()
    (log,) = filled(world)
    world.directory.flusher.request(log)
    world.settle(0.001)
    assert log.is_busy
    append(world, log, 3)
    assert exposed(log) == 6
    configure(world, [log], FIRST)
    world.tasks.run_until(lambda: log.recovery_point == 3, 1_000)
    assert log.flush_mark is None
    assert lose_power(world) == {}


@pytest.mark.parametrize("changes", [(FIRST, PLAIN), (FIRST, PLAIN, FIRST), (PLAIN, FIRST)])
def test_the_last_of_the_settings_that_came_during_a_flush_holds(
    changes: tuple[TopicSettings, ...],
) -> None:
    world = opened()
    (log,) = filled(world, 1, PLAIN if changes[0] is FIRST else FIRST)
    world.directory.flusher.request(log)
    for topic in changes:
        world.settle(0.001)
        assert log.is_busy
        configure(world, [log], topic)
    world.settle()
    is_first = changes[-1] is FIRST
    assert (log.is_flushed_first, bool(marks(world))) == (is_first, is_first)


def test_what_the_loss_before_took_is_not_forgotten_until_a_controller_has_judged_it() -> None:
    world = opened()
    logs = filled(world, 3)
    world.flush(logs[2])
    append(world, logs[2], 3)
    configure(world, logs[:2], FIRST)
    world.settle()
    world.topic = FIRST  # so the next start marks the third
    assert lose_power(world) == {"clicks": {0, 1}}
    world.settle()
    configure(world, [world.directory.logs[logs[1].partition]], PLAIN)
    world.settle()
    configure(world, [world.directory.logs[logs[1].partition]], FIRST)
    world.settle()
    assert lose_power(world, "boot 3") == {"clicks": {0}}
    world.vetted = world.directory.content_id
    world.settle()
    assert lose_power(world, "boot 4") == {"clicks": {0, 1, 2}}


def test_a_start_that_loses_power_tells_what_was_flushed_before_it() -> None:
    told = []
    for number in range(1, 200):
        world = opened(seed=number)
        logs = filled(world, 2)
        configure(world, logs[:1], FIRST)
        world.settle()
        world.topic = FIRST
        world.lose_power()
        world.boot_id = "boot 2"
        world.disk.crash_at(number)
        try:
            world.open()
        except PowerLoss:
            world.files = world.disk.power_on(random.Random(number))
        else:
            break
        world.boot_id = "boot 3"
        told.append(world.open().flushed)
    assert len(told) > 20
    assert all(each == {"clicks": {0}} for each in told)


def test_a_killed_process_has_lost_nothing_and_tells_what_was_flushed_at_the_loss() -> None:
    world = opened()
    logs = filled(world, 2)
    world.flush(logs[1])
    append(world, logs[1], 3)
    configure(world, logs[:1], FIRST)
    world.settle()
    world.topic = FIRST
    assert lose_power(world) == {"clicks": {0}}
    assert all(log.flush_mark for log in world.directory.logs.values())
    world.settle()
    world.kill()
    assert world.open().flushed == {"clicks": {0}}
    judge(world)
    assert world.directory.flushed == {}  # there is no loss that is not known


def test_a_mark_is_worth_nothing_without_the_note_of_its_content() -> None:
    world = opened()
    world.directory.flusher.request(filled(world, 1, FIRST)[0])
    world.settle()
    overwrite(world.disk, "/d01/boot.json", b"")
    assert lose_power(world) == {}
    log = world.directory.logs[CLICKS]
    assert log.flush_mark == world.directory.content_id  # as the start has flushed it
    world.topic = PLAIN
    configure(world, [log], PLAIN)
    world.settle()
    assert marks(world) == []


def test_a_loss_that_a_full_disk_had_no_room_to_note_is_noted_by_the_clean_stop() -> None:
    world = opened()
    filled(world)
    world.lose_power()
    world.boot_id = "boot 2"
    world.disk.fail(errno.ENOSPC, when=lambda call: "boot.json.tmp" in call.path)
    content_id = world.open().content_id
    world.disk.heal()
    assert content_id != world.vetted
    assert world.restart().content_id == content_id
    world.kill()
    assert world.open().content_id == content_id


def test_a_new_log_whose_files_did_not_fit_is_marked_once_they_do() -> None:
    world = opened()
    log = world.log(flush_before_expose=True)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.path.endswith(".log"))
    with pytest.raises(DiskFull):
        append(world, log)
    assert log.flush_mark is None
    world.disk.heal()
    configure(world, [log], PLAIN)
    append(world, log)
    configure(world, [log], FIRST)
    world.settle()
    assert (log.flush_mark, marks(world)) == (world.directory.content_id, [log.flush_mark])


def test_a_mark_of_another_content_goes_where_nothing_is_flushed_first() -> None:
    world = opened()
    world.flush(filled(world, 1, FIRST)[0])
    overwrite(world.disk, "/d01/boot.json", b"")
    world.topic = PLAIN
    assert lose_power(world) == {}
    assert (world.directory.logs[CLICKS].is_flushed_first, marks(world)) == (False, [])


def test_a_setting_that_changed_while_the_broker_was_down_is_made_good_at_its_start() -> None:
    world = opened()
    filled(world)
    world.topic = FIRST
    world.restart()
    assert marks(world) == [world.directory.content_id]
    world.topic = PLAIN
    log = world.restart().logs[CLICKS]
    assert (log.is_flushed_first, marks(world)) == (False, [])


def test_a_start_on_a_full_disk_goes_on_flushing_first() -> None:
    world = opened()
    world.directory.flusher.request(filled(world, 1, FIRST)[0])
    world.settle()
    world.topic = PLAIN
    world.stop()
    world.disk.fail(errno.EMFILE, when=lambda call: call.name == "remove" and "since" in call.path)
    log = world.open().logs[CLICKS]
    assert log.is_flushed_first
    world.disk.heal()
    Schedule(world.directory, lambda log: log.end_offset).flush_due()
    world.settle()
    assert (log.is_flushed_first, marks(world)) == (False, [])


@pytest.mark.parametrize(
    "name",
    [flush_mark_name("c" * 21), flush_mark_name("c" * 23), flush_mark_name("c" * 22) + ".tmp"],
)
def test_another_name_is_no_mark(name: str) -> None:
    assert flush_mark_in(name) is None


def cut(world: World, log: Log) -> None:
    world.truncate(log, 3)


def begin_anew(world: World, log: Log) -> None:
    world.wait(lambda done: world.directory.trimmer.truncate_fully(log, 100, done))


def recreate(world: World, _: Log) -> None:
    world.delete()
    world.log()


@pytest.mark.parametrize("change", [cut, begin_anew, recreate])
@pytest.mark.parametrize("topic", [PLAIN, FIRST])
def test_a_log_that_was_cut_off_or_begun_anew_is_marked_as_before(
    change: Callable[[World, Log], None], topic: TopicSettings
) -> None:
    world = opened()
    (log,) = filled(world, 1, topic)
    append(world, log, 3)
    world.flush(log)
    change(world, log)
    log = world.directory.logs[CLICKS]
    append(world, log, 3)
    world.flush(log)
    end = log.end_offset
    is_first = topic is FIRST
    assert log.is_flushed_first is is_first
    assert bool(lose_power(world)) is is_first
    assert world.directory.logs[CLICKS].end_offset == end


def test_a_log_recreated_for_a_topic_without_the_setting_has_no_mark() -> None:
    world = opened()
    (log,) = filled(world, 1, FIRST)
    world.flush(log)
    world.delete()
    (log,) = filled(world)
    world.flush(log)
    assert marks(world) == []


def test_a_log_that_is_deleted_while_its_setting_changes_is_not_flushed_again() -> None:
    world = opened()
    (log,) = filled(world)
    configure(world, [log], FIRST)
    world.settle(0.001)
    assert log.is_busy
    configure(world, [log], replace(PLAIN, segment_bytes=1 << 20))
    world.delete()
    world.settle()
    assert (world.failures, world.directory.logs) == ([], {})


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_mark_that_was_removed_before_a_clean_stop_does_not_come_back_with_a_power_loss(
    is_changed: bool,
) -> None:
    for seed in range(20):
        world = opened(seed=seed)
        world.flush(filled(world, 1, FIRST)[0])
        log = world.restart().logs[CLICKS]
        if is_changed:
            append(world, log)
        world.disk.fail(
            errno.EMFILE,
            when=lambda call: (call.name, call.path) == ("sync_directory", "/d01/clicks-0"),
        )
        configure(world, [log], PLAIN)
        world.stop()
        assert marks(world) == []
        world.disk.heal()
        log = world.open().logs[CLICKS]
        assert not log.is_flushed_first
        append(world, log, 3)  # which is exposed now
        assert lose_power(world) == {}
