"""Random histories with a power loss: what survives keeps the promises of `files.py`."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kdist.runtime.simulated_disk import SimulatedDisk
from tests.examples import examples

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
