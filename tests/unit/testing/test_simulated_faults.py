"""Faults of the simulated disk, and random histories with a power loss, which keep its promises."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import DiskFailed, DiskFull, OutOfDescriptors
from kdist.testing.simulated_disk import Call, SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock
from tests.examples import examples

SEEDS = range(200)
PAGE_BYTES = 4096

POSITIONS = st.integers(0, 9_000)
CONTENT_STEPS = st.one_of(
    st.tuples(st.just("write"), POSITIONS, st.integers(1, 6_000)),
    st.tuples(st.just("truncate"), POSITIONS, st.just(0)),
    st.tuples(st.just("sync"), st.just(0), st.just(0)),
)

NAMES = st.sampled_from(["/a", "/b", "/c", "/d"])
NAME_STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("remove"), NAMES, NAMES),
    st.tuples(st.just("sync"), NAMES, NAMES),
)


def test_a_sync_after_a_failed_sync_succeeds_although_data_was_lost() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", b"old")
    file = disk.open("/a")
    file.write((b"new" * 3000,), 0)
    disk.fail(when=lambda call: call.name == "sync", forever=False)
    with pytest.raises(DiskFailed):
        file.sync()
    file.sync()
    assert file.read(0, 3) == b"new"
    survivor = disk.crash()
    assert survivor.read("/a") == b"old" + bytes(8997)


def test_bytes_that_a_failed_sync_lost_are_durable_once_written_and_synced_again() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", b"old")
    file = disk.open("/a")
    file.write((b"new",), 0)
    disk.fail(when=lambda call: call.name == "sync", forever=False)
    with pytest.raises(DiskFailed):
        file.sync()
    file.write((b"new",), 0)
    file.sync()
    assert disk.crash().read("/a") == b"new"


def test_a_failed_filesystem_sync_loses_the_dirty_pages_of_all_files() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", b"old")
    disk.open("/a").write((b"new",), 0)
    disk.fail(forever=False)
    with pytest.raises(DiskFailed):
        disk.sync_filesystem("/")
    disk.sync_filesystem("/")
    assert disk.crash().read("/a") == b"old"


def test_an_open_for_which_there_is_no_descriptor_fails_alone_and_is_noted() -> None:
    disk = SimulatedDisk(random.Random(1))
    for path in ("/a", "/b"):
        disk.replace(path, b"abc")
    is_of_a = lambda call: call.name == "open" and call.path == "/a"  # noqa: E731
    disk.fail(errno.EMFILE, when=is_of_a, forever=False)
    assert disk.open("/b").read(0, 3) == b"abc"
    assert not disk.lacks_descriptors
    with pytest.raises(OutOfDescriptors):
        disk.open("/a")
    assert disk.lacks_descriptors
    assert disk.open("/a").read(0, 3) == b"abc"


def test_a_failing_disk_fails_every_kind_of_call() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", b"abc")
    file = disk.open("/a")
    disk.fail()
    calls: list[Callable[[], object]] = [
        lambda: file.read(0, 1), lambda: file.read_cached(0, 1), lambda: file.write((b"x",), 0),
        lambda: file.truncate(1), file.sync, lambda: file.preallocate(0, 1),
        lambda: file.start_writeback(0, 1), lambda: file.drop_cached(0, 1),
        lambda: disk.open("/a"), lambda: disk.open_readonly("/a"), lambda: disk.create("/b"),
        lambda: disk.list("/"), lambda: disk.is_directory("/a"), lambda: disk.exists("/a"),
        lambda: disk.size("/a"), lambda: disk.modified_ms("/a"), lambda: disk.read("/a"),
        lambda: disk.replace("/a", b""), lambda: disk.make_directory("/d"),
        lambda: disk.rename("/a", "/b"), lambda: disk.remove("/a"),
        lambda: disk.remove_tree("/"), lambda: disk.sync_directory("/"),
        lambda: disk.sync_filesystem("/"), lambda: disk.free_bytes("/"), lambda: disk.lock("/l"),
        lambda: disk.total_bytes("/"), lambda: disk.set_modified_ms("/a", 5),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DiskFailed):
            call()
    disk.heal()
    assert disk.list("/") == ["a"]


def test_a_failed_write_may_leave_any_part_of_itself() -> None:
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed))
        file = disk.create("/a")
        disk.fail(forever=False)
        with pytest.raises(DiskFailed):
            file.write((b"ab", b"cd"), 0)
        found.add(file.read(0, 10))
    assert found == {b"", b"a", b"ab", b"abc", b"abcd"}


def test_a_fault_can_begin_after_a_number_of_matching_calls() -> None:
    disk = SimulatedDisk(random.Random(1))
    file = disk.create("/a")

    def is_read(call: Call) -> bool:
        return call.name == "read" and call.path == "/a"

    disk.fail(errno.EACCES, when=is_read, after_calls=2, forever=False)
    file.read(0, 1)
    file.sync()
    file.read(0, 1)
    with pytest.raises(PermissionError):
        file.read(0, 1)
    file.read(0, 1)
    assert disk.calls == {"create": 1, "read": 4, "sync": 1}
    assert [str(call) for call in disk.trace[:2]] == ["create /a", "read /a"]


def test_a_write_to_a_full_disk_writes_what_fits_and_raises() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", b"abc")
    assert disk.used_bytes() == 3
    disk.fill(disk.used_bytes() + 7)
    file = disk.create("/b")
    with pytest.raises(DiskFull):
        file.write((b"0123", b"456789"), 0)
    assert file.read(0, 20) == b"0123456"
    assert disk.free_bytes("/") == 0
    disk.open("/a").write((b"xyz",), 0)
    with pytest.raises(DiskFull):
        disk.replace("/a", b"new content")
    assert disk.read("/a") == b"xyz"
    disk.remove("/a")
    assert file.write((b"789",), 7) == 3


def test_a_lack_of_space_that_shows_at_a_sync_raises_disk_failed() -> None:
    disk = SimulatedDisk(random.Random(1))
    file = disk.create("/a")
    disk.fail(errno.ENOSPC)
    with pytest.raises(DiskFailed):
        file.sync()
    with pytest.raises(DiskFull):
        file.write((b"x",), 0)


def test_files_use_up_free_space() -> None:
    disk = SimulatedDisk(random.Random(1))
    before = disk.free_bytes("/")
    disk.replace("/a", bytes(1 << 20))
    assert disk.free_bytes("/") == before - (1 << 20)


def test_preallocated_space_is_used_until_truncate() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.fill(100)
    file, other = disk.create("/a"), disk.create("/b")
    file.preallocate(0, 60)
    other.preallocate(0, 60)
    assert disk.free_bytes("/") == 40
    with pytest.raises(DiskFull):
        other.write((bytes(50),), 0)
    file.write((bytes(20),), 0)
    file.truncate(20)
    assert disk.free_bytes("/") == 40
    assert other.write((bytes(80),), 0) == 80


def test_a_cached_read_of_dropped_pages_is_none_until_they_are_read() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", bytes(range(200)) * 100)
    file = disk.open("/a")
    file.drop_cached(0, 4096)
    assert file.read_cached(4000, 200) is None
    assert file.read_cached(4096, 200) == (bytes(range(200)) * 100)[4096:4296]
    file.read(4000, 10)
    assert file.read_cached(4000, 96) == file.read(4000, 96)


def test_nothing_is_cached_after_a_power_loss() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", b"abc")
    file = disk.crash().open("/a")
    assert file.read_cached(0, 3) is None
    file.read(0, 3)
    assert file.read_cached(0, 3) == b"abc"


def test_a_read_caches_the_pages_it_covers_and_no_others() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.replace("/a", bytes(3 * PAGE_BYTES))
    file = disk.crash().open("/a")
    file.read(PAGE_BYTES, 1)
    assert file.read_cached(PAGE_BYTES, PAGE_BYTES) == bytes(PAGE_BYTES)
    assert file.read_cached(PAGE_BYTES - 1, 2) is None
    assert file.read_cached(2 * PAGE_BYTES, 1) is None


def test_a_file_is_as_old_as_its_last_write() -> None:
    clock = VirtualClock(1000)
    disk = SimulatedDisk(random.Random(1), clock)
    file = disk.create("/a")
    clock.advance_ms(5)
    file.write((b"abc",), 0)
    clock.advance_ms(5)
    file.sync()
    assert disk.modified_ms("/a") == 1005
    file.truncate(1)
    assert disk.modified_ms("/a") == 1010


def test_a_replace_that_fails_anywhere_leaves_the_old_or_the_new_content_only() -> None:
    for n in range(5):
        disk = SimulatedDisk(random.Random(n))
        disk.replace("/a", b"old")
        disk.fail(after_calls=n, forever=False)
        with pytest.raises(DiskFailed):
            disk.replace("/a", b"new")
        assert disk.list("/") == ["a"]
        assert disk.read("/a") == (b"old" if n < 4 else b"new")


@examples(150, deadline=None)
@given(st.lists(CONTENT_STEPS, max_size=12), st.integers(0, 1 << 30))
def test_each_surviving_byte_was_there_at_some_time_since_the_last_sync(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    disk = SimulatedDisk(random.Random(seed))
    file = disk.create("/a")
    disk.sync_directory("/")
    versions = [b""]
    for number, (step, position, size) in enumerate(steps, 1):
        if step == "write":
            file.write((bytes([number]) * size,), position)
        elif step == "truncate":
            file.truncate(position)
        else:
            file.sync()
            versions.clear()
        versions.append(file.read(0, 20_000))
    found = disk.crash().read("/a")
    assert min(map(len, versions)) <= len(found) <= max(map(len, versions))
    for at in (*range(0, len(found), 61), *range(max(0, len(found) - 3), len(found))):
        assert found[at] in {version[at] if at < len(version) else 0 for version in versions}


@examples(300, deadline=None)
@given(st.lists(NAME_STEPS, max_size=14), st.integers(0, 1 << 30))
def test_each_surviving_name_was_there_since_the_last_sync_and_no_file_has_two(
    steps: list[tuple[str, str, str]], seed: int
) -> None:
    disk = SimulatedDisk(random.Random(seed))
    now: dict[str, int] = {}
    versions: list[dict[str, int]] = [{}]
    for number, (step, name, other) in enumerate(steps):
        if step == "create" and name not in now:
            create(disk, name, number)
            now[name] = number
        elif step == "rename" and name in now and name != other:
            disk.rename(name, other)
            now[other] = now.pop(name)
        elif step == "remove" and name in now:
            disk.remove(name)
            del now[name]
        elif step == "sync":
            disk.sync_directory("/")
            versions.clear()
        versions.append(dict(now))
    survivor = disk.crash()
    found = {f"/{name}": int(survivor.read(f"/{name}")) for name in survivor.list("/")}
    assert len(set(found.values())) == len(found)
    for name, number in found.items():
        assert number in {version.get(name) for version in versions}
    lasting = set.intersection(*(set(version.values()) for version in versions))
    assert lasting <= set(found.values())


def create(disk: SimulatedDisk, name: str, number: int) -> None:
    """A file that holds its number, synced, under a name that is not."""
    file = disk.create(name)
    file.write((b"%d" % number,), 0)
    file.sync()
    file.close()
