"""The commit on a disk that loses power at every call: the output is before it or after it."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pytest

from kdist.config.load_job import Step
from kdist.errors import UserError
from kdist.model import OffsetRange
from kdist.runtime.files import Files
from kdist.spark.load.commit import Commit
from kdist.spark.load.layout import Run, load_name
from kdist.spark.load.ledger import Ledger
from kdist.spark.load.manifest import (
    CorruptManifest,
    DataFile,
    Manifest,
    chain_fault,
    read_manifest,
    write_manifest,
)
from kdist.testing.simulated_disk import PowerLoss, SimulatedDisk
from kdist.wire.crc32c import crc32c
from tests.examples import first_of

OUTPUT = "/out"
SEEDS = first_of([range(5), range(5, 20)])


def manifest(number: int, start: int, end: int) -> Manifest:
    files = tuple(DataFile(f"date=d{day}/part-0.parquet", end - start, 100) for day in range(2))
    offsets = {0: OffsetRange(start, end)}
    return Manifest(number, "clicks", "0" * 32, "job", "0", 0, 0, offsets, 0, 0, None, files)


def stage(files: Files, commit: Commit) -> None:
    """Write the files that Spark would stage."""
    commit.begin()
    for day in range(2):
        files.make_directory(f"{commit.staging}/date=d{day}")
        file = files.create(f"{commit.staging}/date=d{day}/part-0.parquet")
        file.write((bytes([commit.number]) * 100,), 0)
        file.close()


def commit_load(
    files: Files, made: Manifest, supersedes: tuple[int, ...] = (), process: int = 1
) -> None:
    """One run that commits, as `job` does it."""
    ledger = Ledger(files, OUTPUT, "clicks")
    lock = ledger.lock()
    try:
        ledger.sweep()
        commit = Commit(files, ledger.directory, made.load, Run(0, process), lambda _: None)
        stage(files, commit)
        commit.publish(made, supersedes)
        ledger.sweep()
    finally:
        lock.release()


def loads(files: Files) -> list[Manifest]:
    """The loads that readers see, after checking that each is complete and all form one chain."""
    ledger = Ledger(files, OUTPUT, "clicks")
    found = [ledger.manifest(number) for number in ledger.numbers()]
    for before, after in pairwise(found):
        assert chain_fault(before, after) is None
    for each in found:
        for file in each.files:
            path = f"{ledger.directory}/{load_name(each.load)}/{file.path}"
            assert files.read(path) == bytes([each.load]) * file.size_bytes
    return found


def crashes(
    history: Callable[[SimulatedDisk], None], seeds: Iterable[int]
) -> Iterator[SimulatedDisk]:
    """What a disk holds after losing power at each call of a history, and at none."""
    for seed in seeds:
        at = 1
        while True:
            disk = SimulatedDisk(random.Random(seed * 1000 + at))
            disk.crash_at(at)
            try:
                history(disk)
            except PowerLoss:
                yield disk.power_on()
            else:
                break
            at += 1 + seed % 5  # each seed tries other calls


MADE = [manifest(1, 0, 10), manifest(2, 10, 20), manifest(3, 20, 30)]
REPLAYED = manifest(2, 10, 40)


def crashes_in_a_replay(seeds: range, *, may_precede_it: bool = False) -> Iterator[SimulatedDisk]:
    """What power losses leave of three loads and a replay of the latter two."""
    is_replaying: list[bool] = []

    def history(disk: SimulatedDisk) -> None:
        is_replaying.clear()
        for each in MADE:
            commit_load(disk, each)
        is_replaying.append(True)
        commit_load(disk, REPLAYED, supersedes=(2, 3))

    return (left for left in crashes(history, seeds) if is_replaying or may_precede_it)


@pytest.mark.parametrize("seeds", SEEDS)
def test_after_a_power_loss_a_load_is_there_whole_or_not_at_all(seeds: range) -> None:
    first, second = manifest(1, 0, 10), manifest(2, 10, 20)

    def history(disk: SimulatedDisk) -> None:
        commit_load(disk, first)
        commit_load(disk, second)

    for left in crashes(history, seeds):
        found = loads(left)
        assert found in ([], [first], [first, second])
        for made in (first, second)[len(found) :]:
            commit_load(left, made, process=2)
        assert loads(left) == [first, second]
        assert [n for n in left.list(f"{OUTPUT}/topic=clicks") if n[0] == "_"] == ["_lock"]


@pytest.mark.parametrize("seeds", SEEDS)
def test_after_a_power_loss_in_a_replay_the_chain_is_whole(seeds: range) -> None:
    for left in crashes_in_a_replay(seeds, may_precede_it=True):
        assert loads(left) in ([], MADE[:1], MADE[:2], MADE, [MADE[0], REPLAYED])


@pytest.mark.parametrize("seeds", SEEDS)
def test_after_a_power_loss_in_a_replay_readers_see_the_old_loads_or_the_new_one(
    seeds: range,
) -> None:
    seen = []
    for left in crashes_in_a_replay(seeds):
        seen.append(loads(left))
        assert seen[-1] in (MADE, [MADE[0], REPLAYED])
        Ledger(left, OUTPUT, "clicks").sweep()
        assert loads(left) == seen[-1]
        assert left.list(OUTPUT) == ["topic=clicks"]
        assert [n for n in left.list(f"{OUTPUT}/topic=clicks") if n[0] == "_"] == ["_lock"]
        commit_load(left, manifest(seen[-1][-1].load + 1, seen[-1][-1].offsets[0].end, 50))
    assert MADE in seen
    assert [MADE[0], REPLAYED] in seen


@pytest.mark.parametrize("start", [1, 2, 3])
def test_at_no_moment_of_a_replay_readers_see_a_gap_or_a_record_twice(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk(random.Random(1))
    for each in MADE:
        commit_load(disk, each)
    replayed = manifest(start, 10 * (start - 1), 40)
    seen = [loads(disk)]

    def watched(name: str) -> None:
        work = getattr(SimulatedDisk, name)

        def call(*args: object) -> object:
            done = work(*args)
            seen.append(loads(disk))
            return done

        monkeypatch.setattr(SimulatedDisk, name, call)

    for name in ("rename", "exchange", "link", "make_directory", "remove_tree"):
        watched(name)
    commit_load(disk, replayed, supersedes=tuple(range(start, 4)))
    after = [*MADE[: start - 1], replayed]
    switch = seen.index(after)
    assert seen[:switch] == [MADE] * switch
    assert seen[switch:] == [after] * (len(seen) - switch)


def test_a_replay_keeps_the_lock_and_what_is_of_another_topic() -> None:
    disk = SimulatedDisk(random.Random(1))
    commit_load(disk, manifest(1, 0, 10))
    disk.make_directory(f"{OUTPUT}/_replay=clicks-2=1-1")
    ledger = Ledger(disk, OUTPUT, "clicks")
    lock = ledger.lock()
    commit = Commit(disk, ledger.directory, 1, Run(0, 2), lambda _: None)
    stage(disk, commit)
    commit.publish(manifest(1, 0, 12), supersedes=(1,))
    with pytest.raises(UserError, match="wait for it"):
        ledger.lock()
    assert ledger.sweep() == 1
    lock.release()
    ledger.lock().release()
    assert disk.list(OUTPUT) == ["_replay=clicks-2=1-1", "topic=clicks"]


def test_a_replay_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(random.Random(1))
    commit_load(disk, manifest(1, 0, 10))
    commit = Commit(disk, f"{OUTPUT}/topic=clicks", 1, Run(0, 2), lambda _: None)
    stage(disk, commit)
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedDisk, "sync_filesystem", fail)
        with pytest.raises(OSError, match="Input/output"):
            commit.publish(manifest(1, 0, 12), supersedes=(1,))
    commit.abandon()
    assert loads(disk) == [manifest(1, 0, 10)]
    assert disk.list(OUTPUT) == ["topic=clicks"]


def fail(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def unsupported(*_: object) -> bool:
    return False


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("lacking", [("exchange", unsupported), ("link", no_links)])
@pytest.mark.parametrize("seeds", SEEDS)
def test_loads_that_a_replay_removed_and_did_not_replace_are_restored(
    seeds: range, lacking: tuple[str, Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDisk, *lacking)
    missed = 0
    for left in crashes_in_a_replay(seeds):
        missed += loads(left) in (MADE[:1], MADE[:2])
        Ledger(left, OUTPUT, "clicks").sweep()
        assert loads(left) in (MADE, [MADE[0], REPLAYED])
        assert [n for n in left.list(f"{OUTPUT}/topic=clicks") if n[0] == "_"] == ["_lock"]
    assert missed


def test_a_load_that_another_run_has_committed_is_not_replaced() -> None:
    disk = SimulatedDisk(random.Random(1))
    commit_load(disk, manifest(1, 0, 10))
    directory = Ledger(disk, OUTPUT, "clicks").directory
    late = Commit(disk, directory, 1, Run(0, 2), lambda _: None)
    stage(disk, late)
    with pytest.raises(UserError, match="another run has committed load 1 in /out/topic=clicks"):
        late.publish(manifest(1, 0, 15))
    late.abandon()
    assert loads(disk) == [manifest(1, 0, 10)]


def test_a_run_whose_lock_another_host_does_not_see_keeps_what_it_stages() -> None:
    disk = SimulatedDisk(random.Random(1))
    ledger = Ledger(disk, OUTPUT, "clicks")
    ledger.lock().release()
    alive = Commit(disk, ledger.directory, 1, Run(1_000, 1, "gate1"), lambda _: None)
    stage(disk, alive)
    assert ledger.sweep(Run(2_000, 2, "gate2")) == 0
    alive.publish(manifest(1, 0, 10))
    assert loads(disk) == [manifest(1, 0, 10)]


def test_what_another_host_left_long_ago_is_removed() -> None:
    disk = SimulatedDisk(random.Random(1))
    ledger = Ledger(disk, OUTPUT, "clicks")
    ledger.lock().release()
    for run in (Run(1_000, 1, "gate1"), Run(1_000, 1, "gate2"), Run(1_000, 1)):
        stage(disk, Commit(disk, ledger.directory, 1, run, lambda _: None))
    assert ledger.sweep(Run(2_000, 2, "gate2")) == 2
    assert ledger.sweep(Run(8 * 86_400_000, 2, "gate2")) == 1
    assert disk.list(ledger.directory) == ["_lock"]


@pytest.mark.parametrize("step", ["files-synced", "manifest-written", "directories-synced"])
def test_a_run_whose_staged_files_are_removed_commits_nothing(step: Step) -> None:
    disk = SimulatedDisk(random.Random(1))
    ledger = Ledger(disk, OUTPUT, "clicks")
    ledger.lock().release()

    def sweep(reached: Step) -> None:
        if reached == step:
            ledger.sweep()

    alive = Commit(disk, ledger.directory, 1, Run(1_000, 1), sweep)
    stage(disk, alive)
    with pytest.raises((UserError, OSError)):
        alive.publish(manifest(1, 0, 10))
    assert loads(disk) == []


@pytest.mark.parametrize("step", ["files-synced", "manifest-written", "directories-synced"])
def test_a_load_without_one_of_its_files_is_not_committed(step: Step) -> None:
    disk = SimulatedDisk(random.Random(1))
    ledger = Ledger(disk, OUTPUT, "clicks")
    ledger.lock().release()

    def remove(reached: Step) -> None:
        if reached == step:
            disk.remove(f"{alive.staging}/date=d1/part-0.parquet")

    alive = Commit(disk, ledger.directory, 1, Run(1_000, 1), remove)
    stage(disk, alive)
    with pytest.raises(UserError, match=r"another run has removed .*part-0\.parquet"):
        alive.publish(manifest(1, 0, 10))
    assert loads(disk) == []


def test_a_manifest_of_an_older_release_is_read() -> None:
    said = json.loads(write_manifest(manifest(1, 0, 10)))
    del said["crc32c"], said["epochs"], said["records"]
    said["format"] = 1
    summed = f"{crc32c(json.dumps(said, sort_keys=True).encode()):08x}"
    older = json.dumps({"crc32c": summed, **said}).encode()
    assert read_manifest(older, "x") == manifest(1, 0, 10)
    newer = manifest(1, 0, 10)._replace(epochs={0: 3}, records={0: 9})
    assert read_manifest(write_manifest(newer), "x") == newer


def test_the_steps_run_in_the_order_of_their_table() -> None:
    disk = SimulatedDisk(random.Random(1))
    commit_load(disk, manifest(1, 0, 10))
    steps: list[Step] = []
    commit = Commit(disk, f"{OUTPUT}/topic=clicks", 1, Run(0, 2), steps.append)
    stage(disk, commit)
    commit.publish(manifest(1, 0, 12), supersedes=(1,))
    assert steps == [
        "staging",
        "files-synced",
        "manifest-written",
        "directories-synced",
        "superseded",
        "renamed",
        "committed",
    ]


def test_a_second_run_is_told_to_wait() -> None:
    disk = SimulatedDisk(random.Random(1))
    ledger = Ledger(disk, OUTPUT, "clicks")
    lock = ledger.lock()
    with pytest.raises(UserError) as refused:
        Ledger(disk, OUTPUT, "clicks").lock()
    assert str(refused.value) == "another load of clicks is writing to /out: wait for it"
    lock.release()
    ledger.lock().release()


def test_an_output_without_a_parent_is_refused() -> None:
    disk = SimulatedDisk(random.Random(1))
    with pytest.raises(UserError, match="/a/b cannot be made: /a does not exist"):
        Ledger(disk, "/a/b", "clicks").lock()


@pytest.mark.parametrize("cut", range(0, 900, 37))
def test_a_truncated_or_changed_manifest_is_reported(cut: int) -> None:
    disk = SimulatedDisk(random.Random(1))
    commit_load(disk, manifest(1, 0, 10))
    path = f"{OUTPUT}/topic=clicks/load=000001/_manifest.json"
    content = disk.read(path)
    changed = content[:cut] + bytes([content[cut % len(content)] ^ 1]) + content[cut + 1 :]
    for bad in (content[: cut % len(content)], changed):
        disk.replace(path, bad)
        with pytest.raises(CorruptManifest, match=r"_manifest\.json is corrupt"):
            loads(disk)


def test_a_misplaced_manifest_is_reported() -> None:
    disk = SimulatedDisk(random.Random(1))
    commit_load(disk, manifest(1, 0, 10))
    disk.rename(f"{OUTPUT}/topic=clicks/load=000001", f"{OUTPUT}/topic=clicks/load=000002")
    with pytest.raises(CorruptManifest, match="is of load 1 of clicks"):
        Ledger(disk, OUTPUT, "clicks").last()
