"""What a power loss may leave on the simulated disk, and what it may not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kdist.testing.simulated_disk import PowerLoss, SimulatedDisk

SEEDS = range(200)
PAGE_BYTES = 4096


def outcomes(history: Callable[[SimulatedDisk], object], path: str) -> set[bytes | None]:
    """What may be at `path` after `history` and a power loss; None: nothing."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed))
        history(disk)
        survivor = disk.crash()
        found.add(survivor.read(path) if survivor.exists(path) else None)
    return found


def put(disk: SimulatedDisk, path: str, content: bytes) -> None:
    """A file that a power loss does not touch."""
    file = disk.create(path)
    file.write((content,), 0)
    file.sync()
    disk.sync_directory("/")


def test_synced_bytes_under_a_synced_name_survive() -> None:
    assert outcomes(lambda disk: put(disk, "/a", b"abc"), "/a") == {b"abc"}


def test_a_synced_file_under_a_name_that_was_not_synced_may_be_gone() -> None:
    def history(disk: SimulatedDisk) -> None:
        file = disk.create("/a")
        file.write((b"abc",), 0)
        file.sync()

    assert outcomes(history, "/a") == {None, b"abc"}


def test_a_file_in_a_directory_whose_name_was_not_synced_may_be_gone_with_it() -> None:
    def history(disk: SimulatedDisk) -> None:
        disk.make_directory("/d")
        disk.create("/d/a").sync()
        disk.sync_directory("/d")

    assert outcomes(history, "/d/a") == {None, b""}


def test_an_unsynced_append_may_survive_whole_partly_as_zeros_or_not_at_all() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"abc")
        disk.open("/a").write((b"def",), 3)

    found = outcomes(history, "/a")
    assert {b"abc", b"abcdef", b"abc\0\0\0", b"abcd"} <= found
    assert all(content is not None and content.startswith(b"abc") for content in found)


def test_unsynced_pages_survive_independently() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"o" * 3 * PAGE_BYTES)
        disk.open("/a").write((b"n" * 3 * PAGE_BYTES,), 0)

    found = outcomes(history, "/a")
    whole = {
        "".join(chr(content[page * PAGE_BYTES]) for page in range(3))
        for content in found
        if content and all(len(set(content[n : n + PAGE_BYTES])) == 1 for n in (0, 4096, 8192))
    }
    assert whole == {"ooo", "oon", "ono", "onn", "noo", "non", "nno", "nnn"}


def test_a_page_may_be_torn_between_sectors_and_nowhere_else() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"o" * PAGE_BYTES)
        disk.open("/a").write((b"n" * PAGE_BYTES,), 0)

    found = {content for content in outcomes(history, "/a") if content}
    assert any(len(set(content)) == 2 for content in found)
    for content in found:
        assert all(len(set(content[n : n + 512])) == 1 for n in range(0, PAGE_BYTES, 512))


def test_truncated_bytes_may_reappear_until_a_sync() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"abcdef")
        disk.open("/a").truncate(3)

    found = outcomes(history, "/a")
    assert {b"abc", b"abcdef"} <= found
    assert all(content is not None and content.startswith(b"abc") for content in found)


def test_bytes_written_and_truncated_between_two_syncs_may_reappear() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"")
        file = disk.open("/a")
        file.write((b"first",), 0)
        file.truncate(0)
        file.write((b"second",), 0)

    found = outcomes(history, "/a")
    assert {b"", b"first", b"second"} <= found


def test_an_unsynced_file_may_have_any_length_it_had_since_its_sync() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"abcdef")
        file = disk.open("/a")
        file.truncate(3)
        file.write((b"DEFGHI",), 3)
        file.truncate(5)

    lengths = {len(content or b"") for content in outcomes(history, "/a")}
    assert lengths == {3, 4, 5, 6, 7, 8, 9}


def test_a_synced_truncation_survives() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"abcdef")
        file = disk.open("/a")
        file.truncate(3)
        file.sync()

    assert outcomes(history, "/a") == {b"abc"}


def test_a_rename_leaves_the_old_name_or_the_new_and_never_neither() -> None:
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed))
        put(disk, "/a", b"abc")
        disk.rename("/a", "/b")
        disk.rename("/b", "/c")
        found.add(tuple(disk.crash().list("/")))
    assert found == {("a",), ("b",), ("c",)}


def test_a_rename_over_a_file_leaves_the_old_content_or_the_new() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"new")
        put(disk, "/b", b"old")
        disk.rename("/a", "/b")

    assert outcomes(history, "/b") == {b"old", b"new"}


def test_a_synced_rename_survives() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"abc")
        disk.rename("/a", "/b")
        disk.sync_directory("/")

    assert outcomes(history, "/a") == {None}
    assert outcomes(history, "/b") == {b"abc"}


def test_a_removed_file_may_reappear_until_the_directory_is_synced() -> None:
    def history(disk: SimulatedDisk) -> None:
        put(disk, "/a", b"abc")
        disk.remove("/a")

    def synced(disk: SimulatedDisk) -> None:
        history(disk)
        disk.sync_directory("/")

    assert outcomes(history, "/a") == {None, b"abc"}
    assert outcomes(synced, "/a") == {None}


def test_a_filesystem_sync_makes_everything_durable() -> None:
    def history(disk: SimulatedDisk) -> None:
        disk.make_directory("/d")
        disk.create("/d/a").write((b"abc",), 0)
        disk.sync_filesystem("/")

    assert outcomes(history, "/d/a") == {b"abc"}


def test_an_interrupted_replace_leaves_the_old_content_or_the_new() -> None:
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed))
        disk.replace("/a", b"old" * 2000)
        disk.crash_at(1 + seed % 5)
        with pytest.raises(PowerLoss):
            disk.replace("/a", b"new" * 3000)
        found.add(disk.power_on().read("/a"))
    assert found == {b"old" * 2000, b"new" * 3000}


def test_a_replace_that_returned_is_durable() -> None:
    assert outcomes(lambda disk: disk.replace("/a", b"abc"), "/a") == {b"abc"}


def test_a_replace_without_sync_is_durable_after_a_filesystem_sync() -> None:
    def history(disk: SimulatedDisk) -> None:
        disk.replace("/a", b"old")
        disk.replace("/a", b"new", durable=False)

    def synced(disk: SimulatedDisk) -> None:
        history(disk)
        disk.sync_filesystem("/")

    assert {b"old", b"new", b""} <= outcomes(history, "/a")
    assert outcomes(synced, "/a") == {b"new"}


def test_the_call_at_which_power_is_lost_takes_effect_or_not() -> None:
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed))
        put(disk, "/a", b"old")
        file = disk.open("/a")
        disk.crash_at(2)
        file.sync()
        with pytest.raises(PowerLoss):
            file.write((b"new",), 0)
        assert disk.trace[-1].name == "write"
        found.add(disk.power_on().read("/a"))
    assert found == {b"old", b"new"}


def cut_short(content: bytes, position: int) -> set[bytes]:
    """What may be in /a, a page of "o", if the power goes in its second write, but all that was
    written by then reaches the disk."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed))
        put(disk, "/a", b"o" * PAGE_BYTES)
        disk.crash_at(2, when=lambda call: call.name == "write")
        file = disk.open("/a")
        file.write((b"f",), 0)
        with pytest.raises(PowerLoss):
            file.write((content[:1], content[1:]), position)
        survivors = [disk.power_on(random.Random(n)).read("/a") for n in range(30)]
        found.add(max(survivors, key=lambda each: (len(each), each.count(b"f") + each.count(b"n"))))
    return found


def test_of_an_append_at_which_power_is_lost_any_part_may_be_there() -> None:
    before = b"f" + b"o" * (PAGE_BYTES - 1)
    assert cut_short(b"nnn", PAGE_BYTES) == {before + b"n" * n for n in range(4)}


def test_of_an_overwrite_at_which_power_is_lost_whole_sectors_may_be_there() -> None:
    counts = {content.count(b"n") for content in cut_short(b"n" * 1024, 100)}
    assert counts == {0, 512 - 100, 1024 - 100, 1024}


def test_a_power_loss_is_told_before_anything_else_runs() -> None:
    told: list[str] = []
    disk = SimulatedDisk(random.Random(1))
    disk.on_power_loss = lambda: told.append("power")
    disk.crash_at(2)

    def work() -> None:
        try:
            disk.list("/")
            disk.list("/")
        finally:
            told.append("finally")

    with pytest.raises(PowerLoss):
        work()
    assert told == ["power", "finally"]


def test_a_power_loss_to_come_can_be_called_off() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.crash_at(1)
    disk.heal()
    assert disk.list("/") == []


def test_a_sync_at_which_power_is_lost_may_be_complete_or_partial() -> None:
    found = set()
    for seed in SEEDS:
        disk = SimulatedDisk(random.Random(seed))
        file = disk.create("/a")
        disk.sync_directory("/")
        file.write((b"new",), 0)
        disk.crash_at(1)
        with pytest.raises(PowerLoss):
            file.sync()
        found.add(disk.power_on().read("/a"))
    assert {b"", b"\0\0\0", b"new"} <= found


def test_after_a_power_loss_every_call_raises_and_open_files_stay_dead() -> None:
    disk = SimulatedDisk(random.Random(1))
    file = disk.create("/a")
    disk.sync_directory("/")
    survivor = disk.crash()
    file.close()
    for call in (lambda: disk.open("/a"), file.size, file.sync, lambda: file.read(0, 1)):
        with pytest.raises(PowerLoss):
            call()
    assert survivor.open("/a").size() == 0


def test_what_survives_a_power_loss_depends_on_the_seed_alone() -> None:
    disk = SimulatedDisk(random.Random(1))
    put(disk, "/a", b"old" * 5000)
    disk.open("/a").write((b"new" * 5000,), 0)
    disk.crash()

    def survivor(seed: int) -> bytes:
        return disk.power_on(random.Random(seed)).read("/a")

    assert survivor(7) == survivor(7)
    assert len({survivor(seed) for seed in SEEDS}) > 10


def test_a_power_loss_frees_locks() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.lock("/.lock")
    disk.sync_directory("/")
    disk.crash().lock("/.lock").release()
