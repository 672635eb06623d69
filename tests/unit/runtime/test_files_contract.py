"""What every disk does: the real one and the simulated one alike, in random calls too."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kdist.runtime.disk import Disk
from kdist.runtime.files import Buffer, File, Files
from kdist.testing.simulated_disk import SimulatedDisk
from tests.examples import examples


class Place(NamedTuple):
    """A disk and an empty directory on it."""

    files: Files
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def create(self, name: str, content: bytes = b"") -> File:
        file = self.files.create(self.path(name))
        file.write((content,), 0)
        return file


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "real":
        disk = Disk()
        yield Place(disk, str(tmp_path))
        disk.close()
    else:
        simulated = SimulatedDisk(random.Random(1))
        simulated.make_directory("/data")
        yield Place(simulated, "/data")


PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"])
POSITIONS = st.sampled_from([0, 1, 100, 4095, 4096, 5000, 12_288, 20_000])
CONTENT = st.sampled_from([b"", b"x", b"y" * 100, b"z" * 4096, b"w" * 9001])


class Side:
    """One disk, its root, and the files opened on it, in the order they were opened."""

    def __init__(self, files: Files, root: str) -> None:
        self.files = files
        self.root = root
        self.opened: list[File] = []

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def tree(self, path: str) -> object:
        """All names and contents under `path`."""
        if self.files.is_directory(path):
            return {name: self.tree(f"{path}/{name}") for name in self.files.list(path)}
        return self.files.read(path)


class DisksAgree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        simulated = SimulatedDisk(random.Random(1))
        simulated.make_directory("/data")
        self.sides = (Side(Disk(), self.temporary.name), Side(simulated, "/data"))

    def both(self, call: Callable[[Side], object]) -> None:
        real, simulated = (self.outcome(call, side) for side in self.sides)
        assert simulated == real

    @staticmethod
    def outcome(call: Callable[[Side], object], side: Side) -> object:
        try:
            return call(side)
        except OSError as error:
            return error.errno

    @rule(name=PATHS)
    def create(self, name: str) -> None:
        self.both(lambda side: side.opened.append(side.files.create(side.path(name))))

    @rule(name=PATHS)
    def open(self, name: str) -> None:
        self.both(lambda side: side.opened.append(side.files.open(side.path(name))))

    @rule(name=PATHS)
    def make_directory(self, name: str) -> None:
        self.both(lambda side: side.files.make_directory(side.path(name)))

    @rule(name=PATHS)
    def remove(self, name: str) -> None:
        self.both(lambda side: side.files.remove(side.path(name)))

    @rule(name=PATHS)
    def remove_tree(self, name: str) -> None:
        self.both(lambda side: side.files.remove_tree(side.path(name)))

    @rule(old=PATHS, new=PATHS)
    def rename(self, old: str, new: str) -> None:
        self.both(lambda side: side.files.rename(side.path(old), side.path(new)))

    @rule(old=PATHS, new=PATHS)
    def link(self, old: str, new: str) -> None:
        self.both(lambda side: side.files.link(side.path(old), side.path(new)))

    @rule(one=PATHS, other=PATHS)
    def exchange(self, one: str, other: str) -> None:
        self.both(lambda side: side.files.exchange(side.path(one), side.path(other)))

    @rule(name=PATHS, content=CONTENT)
    def replace(self, name: str, content: bytes) -> None:
        self.both(lambda side: side.files.replace(side.path(name), content))

    @rule(name=PATHS)
    def sync_directory(self, name: str) -> None:
        self.both(lambda side: side.files.sync_directory(side.path(name)))

    @rule(which=st.integers(0, 9), position=POSITIONS, content=CONTENT)
    def write(self, which: int, position: int, content: bytes) -> None:
        self.on_file(which, lambda file: file.write((content, b"|", content), position))

    @rule(which=st.integers(0, 9), size=POSITIONS)
    def truncate(self, which: int, size: int) -> None:
        self.on_file(which, lambda file: file.truncate(size))

    @rule(which=st.integers(0, 9), position=POSITIONS, size=POSITIONS)
    def read(self, which: int, position: int, size: int) -> None:
        self.on_file(which, lambda file: file.read(position, size))

    @rule(which=st.integers(0, 9), position=POSITIONS, size=POSITIONS)
    def give_hints(self, which: int, position: int, size: int) -> None:
        def hint(file: File) -> None:
            file.preallocate(position, size + 1)
            file.start_writeback(position, size)
            file.drop_cached(position, size)

        self.on_file(which, hint)

    @rule(which=st.integers(0, 9))
    def sync(self, which: int) -> None:
        self.on_file(which, lambda file: file.sync())

    @rule(which=st.integers(0, 9))
    def close(self, which: int) -> None:
        self.on_file(which, lambda file: file.close())

    def on_file(self, which: int, call: Callable[[File], object]) -> None:
        if self.sides[0].opened:
            n = which % len(self.sides[0].opened)
            self.both(lambda side: call(side.opened[n]))

    @invariant()
    def both_hold_the_same(self) -> None:
        self.both(lambda side: side.tree(side.root))

    def teardown(self) -> None:
        for side in self.sides:
            for file in side.opened:
                file.close()
        self.temporary.cleanup()


def test_written_bytes_are_read_back(place: Place) -> None:
    file = place.create("a", b"hello world")
    assert file.size() == 11
    assert file.read(6, 5) == b"world"
    assert place.files.size(place.path("a")) == 11
    assert place.files.read(place.path("a")) == b"hello world"


def test_buffers_of_any_kind_are_written_one_after_another(place: Place) -> None:
    file = place.create("a")
    buffers: list[Buffer] = [b"ab", bytearray(b"cd"), b"", memoryview(b"xefx")[1:3]]
    assert file.write(buffers, 3) == 6
    assert file.read(0, 100) == b"\0\0\0abcdef"


def test_more_buffers_than_the_kernel_takes_at_once_are_written(place: Place) -> None:
    file = place.create("a")
    buffers = [b"%05d" % n for n in range(2500)]
    assert file.write(buffers, 7) == 12_500
    assert file.read(7, 12_500) == b"".join(buffers)


def test_writing_no_buffers_writes_nothing(place: Place) -> None:
    file = place.create("a", b"abc")
    assert file.write([], 0) == 0
    assert file.write([b""], 100) == 0
    assert file.size() == 3


def test_a_write_inside_the_file_leaves_the_rest_unchanged(place: Place) -> None:
    file = place.create("a", b"0123456789")
    file.write((b"xy",), 4)
    assert file.read(0, 20) == b"0123xy6789"


def test_a_read_stops_at_the_end_of_the_file(place: Place) -> None:
    file = place.create("a", b"abc")
    assert file.read(1, 100) == b"bc"
    assert file.read(3, 100) == b""
    assert file.read(50, 100) == b""
    assert file.read(0, 0) == b""


def test_a_cached_read_returns_what_a_read_returns_or_none(place: Place) -> None:
    file = place.create("a", bytes(range(256)) * 100)
    for position, size in ((0, 100), (25_000, 5_000), (25_600, 10), (30_000, 10)):
        assert file.read_cached(position, size) in (None, file.read(position, size))


def test_bytes_just_written_and_read_are_cached(place: Place) -> None:
    file = place.create("a", b"abc" * 5_000)
    assert file.read_cached(10, 20_000) == file.read(10, 20_000)


def test_truncate_shortens_a_file(place: Place) -> None:
    file = place.create("a", b"x" * 10_000)
    file.truncate(5_000)
    assert file.size() == 5_000
    assert file.read(4_999, 10) == b"x"


def test_truncate_extends_with_zeros_even_over_what_was_cut(place: Place) -> None:
    file = place.create("a", b"x" * 10_000)
    file.truncate(5_000)
    file.truncate(12_000)
    assert file.read(4_999, 8_000) == b"x" + bytes(7_000)


def test_preallocating_changes_neither_size_nor_content(place: Place) -> None:
    file = place.create("a", b"abc")
    file.preallocate(0, 1 << 20)
    assert file.size() == 3
    file.write((b"def",), 3)
    assert file.read(0, 100) == b"abcdef"


def test_hints_and_syncs_do_not_change_content(place: Place) -> None:
    content = random.Random(2).randbytes(100_000)
    file = place.create("a", content)
    file.start_writeback(0, 50_000)
    file.sync()
    file.drop_cached(0, 100_000)
    place.files.sync_directory(place.root)
    place.files.sync_filesystem(place.root)
    assert file.read(0, 200_000) == content


def test_two_handles_see_one_file(place: Place) -> None:
    one = place.create("a", b"abc")
    other = place.files.open(place.path("a"))
    other.write((b"def",), 3)
    assert one.read(0, 10) == b"abcdef"
    one.close()
    assert other.size() == 6


def test_a_closed_file_refuses_and_a_second_close_does_nothing(place: Place) -> None:
    file = place.create("a", b"abc")
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write((b"x",), 0)


def test_a_file_opened_readonly_cannot_be_written(place: Place) -> None:
    place.create("a", b"abc").close()
    file = place.files.open_readonly(place.path("a"))
    assert file.read(0, 10) == b"abc"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write((b"x",), 0)


def test_a_removed_file_stays_readable_through_open_handles(place: Place) -> None:
    file = place.create("a", b"abc")
    place.files.remove(place.path("a"))
    assert not place.files.exists(place.path("a"))
    assert file.read(0, 3) == b"abc"
    place.create("a")
    assert place.files.size(place.path("a")) == 0


def test_creating_an_existing_name_is_refused(place: Place) -> None:
    place.create("a", b"abc")
    with pytest.raises(FileExistsError):
        place.files.create(place.path("a"))
    with pytest.raises(FileExistsError):
        place.files.make_directory(place.path("a"))
    assert place.files.read(place.path("a")) == b"abc"


def test_a_missing_name_raises_file_not_found(place: Place) -> None:
    files, missing = place.files, place.path("missing")
    calls = (files.open, files.open_readonly, files.size, files.modified_ms, files.read)
    for call in (*calls, files.list, files.remove, files.remove_tree, files.sync_directory):
        with pytest.raises(FileNotFoundError):
            call(missing)
    with pytest.raises(FileNotFoundError):
        files.rename(missing, place.path("b"))
    with pytest.raises(FileNotFoundError):
        files.create(f"{missing}/a")
    assert not files.exists(missing)
    assert not files.is_directory(missing)


def test_a_directory_is_not_a_file_nor_a_file_a_directory(place: Place) -> None:
    files, file, directory = place.files, place.path("file"), place.path("directory")
    files.create(file)
    files.make_directory(directory)
    for call in (files.open, files.open_readonly, files.read, files.remove):
        with pytest.raises(IsADirectoryError):
            call(directory)
    for refused in (files.list, files.remove_tree, files.sync_directory):
        with pytest.raises(NotADirectoryError):
            refused(file)
    with pytest.raises(NotADirectoryError):
        files.create(f"{file}/a")
    assert not files.exists(f"{file}/a")
    assert files.is_directory(directory)
    assert not files.is_directory(file)
    assert not any(map(files.is_link, (directory, file, f"{directory}/missing", f"{file}/a")))


def test_a_listing_is_sorted_and_covers_one_directory(place: Place) -> None:
    for name in ("b", "c", "a"):
        place.create(name)
    place.files.make_directory(place.path("d"))
    place.create("d/e")
    assert place.files.list(place.root) == ["a", "b", "c", "d"]
    assert place.files.list(place.path("d")) == ["e"]


def test_a_rename_replaces_a_file(place: Place) -> None:
    place.create("a", b"new")
    place.create("b", b"old")
    place.files.rename(place.path("a"), place.path("b"))
    assert place.files.list(place.root) == ["b"]
    assert place.files.read(place.path("b")) == b"new"


def test_renaming_a_directory_keeps_its_content(place: Place) -> None:
    place.files.make_directory(place.path("a"))
    place.create("a/x", b"abc")
    place.files.rename(place.path("a"), place.path("b"))
    assert place.files.read(place.path("b/x")) == b"abc"
    assert not place.files.exists(place.path("a"))


def test_a_rename_over_a_nonempty_directory_or_another_kind_is_refused(place: Place) -> None:
    place.files.make_directory(place.path("directory"))
    place.files.make_directory(place.path("full"))
    place.create("full/x")
    place.create("file")
    for old, new, error in (
        ("file", "directory", IsADirectoryError),
        ("directory", "file", NotADirectoryError),
        ("directory", "full", OSError),
    ):
        with pytest.raises(error):
            place.files.rename(place.path(old), place.path(new))
    assert place.files.list(place.root) == ["directory", "file", "full"]


def test_remove_tree_removes_a_directory_and_its_content(place: Place) -> None:
    place.files.make_directory(place.path("a"))
    place.files.make_directory(place.path("a/b"))
    place.create("a/b/c", b"abc")
    place.create("keep")
    place.files.remove_tree(place.path("a"))
    assert place.files.list(place.root) == ["keep"]


def test_replace_puts_the_new_content_in_place_and_leaves_nothing_else(place: Place) -> None:
    for content, durable in ((b"one", True), (b"a longer second", False), (b"", True)):
        place.files.replace(place.path("a"), content, durable=durable)
        assert place.files.read(place.path("a")) == content
        assert place.files.list(place.root) == ["a"]


def test_a_secret_file_is_replaced_as_any_other(place: Place) -> None:
    for content in (b"one", b"a second"):
        place.files.replace(place.path("a"), content, is_secret=True)
        assert place.files.read(place.path("a")) == content
        assert place.files.list(place.root) == ["a"]


def test_replace_overwrites_a_temporary_file_left_by_a_crash(place: Place) -> None:
    place.create("a.tmp", b"half of something much longer")
    place.files.replace(place.path("a"), b"new")
    assert place.files.read(place.path("a")) == b"new"
    assert place.files.list(place.root) == ["a"]


def test_a_failed_replace_leaves_the_old_content_and_no_temporary_file(place: Place) -> None:
    place.files.make_directory(place.path("a"))
    with pytest.raises(IsADirectoryError):
        place.files.replace(place.path("a"), b"new")
    assert place.files.list(place.root) == ["a"]


def test_a_lock_is_held_by_one_until_it_is_released(place: Place) -> None:
    lock = place.files.lock(place.path(".lock"))
    with pytest.raises(BlockingIOError):
        place.files.lock(place.path(".lock"))
    lock.release()
    lock.release()
    place.files.lock(place.path(".lock")).release()
    assert place.files.exists(place.path(".lock"))


def test_reading_a_locked_file_does_not_free_the_lock(place: Place) -> None:
    lock = place.files.lock(place.path(".lock"))
    place.files.read(place.path(".lock"))
    with pytest.raises(BlockingIOError):
        place.files.lock(place.path(".lock"))
    lock.release()


def test_free_space_and_age_are_in_bytes_and_in_milliseconds_since_the_epoch(place: Place) -> None:
    place.create("a", b"abc").close()
    free_bytes = place.files.free_bytes(place.root)
    assert 1 << 20 < free_bytes <= place.files.total_bytes(place.root) < 1 << 60
    assert 1_600_000_000_000 < place.files.modified_ms(place.path("a")) < 4_000_000_000_000
    place.files.set_modified_ms(place.path("a"), 1_500_000_000_123)
    assert place.files.modified_ms(place.path("a")) == 1_500_000_000_123


TestDisksAgree = DisksAgree.TestCase
TestDisksAgree.settings = examples(100, stateful_step_count=40, deadline=None)


def test_two_directories_are_exchanged_with_all_that_is_in_them(place: Place) -> None:
    for name in ("a", "b"):
        place.files.make_directory(place.path(name))
        place.create(f"{name}/of {name}", name.encode())
    assert place.files.exchange(place.path("a"), place.path("b"))
    assert place.files.list(place.path("a")) == ["of b"]
    assert place.files.read(place.path("b/of a")) == b"a"
    assert not place.files.exchange(place.path("a"), place.path("a/of b"))
    with pytest.raises(FileNotFoundError):
        place.files.exchange(place.path("a"), place.path("c"))


def test_a_linked_file_stays_under_its_other_name(place: Place) -> None:
    place.create("a", b"x").close()
    place.files.link(place.path("a"), place.path("b"))
    with pytest.raises(FileExistsError):
        place.files.link(place.path("a"), place.path("b"))
    place.files.remove(place.path("a"))
    assert place.files.read(place.path("b")) == b"x"
