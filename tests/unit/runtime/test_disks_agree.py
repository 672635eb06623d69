"""The real disk and the simulated one give the same answers to the same random calls."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kdist.runtime.disk import Disk
from kdist.runtime.files import File, Files
from kdist.runtime.simulated_disk import SimulatedDisk
from tests.examples import examples

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


TestDisksAgree = DisksAgree.TestCase
TestDisksAgree.settings = examples(100, stateful_step_count=40, deadline=None)
