"""A broker's release and settings are switched as one, and what ran before is kept."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest
from deploy_plugins import load

switch = load("roles/kdist_broker/library/kdist_broker_switch.py")

GROUP = grp.getgrgid(os.getgid()).gr_name
OLD, NEW = ("/opt/kdist/releases/1", b"a=1\n"), ("/opt/kdist/releases/2", b"a=2\n")


def put(directory: Path, release: str, settings: bytes) -> bool:
    changed = switch.switch(directory, switch.make(directory, release, settings, GROUP))
    switch.remove_others(directory)
    return bool(changed)


def runs(directory: Path, link: str = "current") -> tuple[str, bytes]:
    """The release and the settings that a link leads to."""
    found = directory / link
    return os.readlink(found / "release"), (found / "broker.properties").read_bytes()


def test_a_switch_keeps_what_ran_before(tmp_path: Path) -> None:
    assert put(tmp_path, *OLD)
    assert put(tmp_path, *NEW)
    assert (runs(tmp_path), runs(tmp_path, "former")) == (NEW, OLD)


def test_a_second_switch_to_the_same_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path, *OLD)
    put(tmp_path, *NEW)
    assert not put(tmp_path, *NEW)
    assert runs(tmp_path, "former") == OLD


def test_going_back_is_a_switch_to_the_former(tmp_path: Path) -> None:
    put(tmp_path, *OLD)
    put(tmp_path, *NEW)
    assert switch.switch(tmp_path, switch.target(tmp_path / "former"))
    assert (runs(tmp_path), runs(tmp_path, "former")) == (OLD, NEW)


@pytest.mark.parametrize("part", [0, 1], ids=["release", "settings"])
def test_a_change_of_either_is_another_generation(tmp_path: Path, part: int) -> None:
    mixed = (NEW[0], OLD[1]) if part == 0 else (OLD[0], NEW[1])
    put(tmp_path, *OLD)
    assert put(tmp_path, *mixed)
    assert (runs(tmp_path), runs(tmp_path, "former")) == (mixed, OLD)


@pytest.mark.parametrize("step", range(1, 12))
def test_a_switch_that_dies_leaves_one_of_both_and_is_done_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """At each rename, link and sync in turn: never a new release under old settings."""
    put(tmp_path, *OLD)
    done = 0

    class Died(Exception):
        pass

    def dying(function: str, module: object) -> None:
        real = getattr(module, function)

        def call(*arguments: object, **named: object) -> object:
            nonlocal done
            done += 1
            if done == step:
                raise Died
            return real(*arguments, **named)

        monkeypatch.setattr(module, function, call)

    with monkeypatch.context() as monkeypatch:
        for name, module in (
            ("fsync", os),
            ("symlink_to", Path),
            ("replace", Path),
            ("mkdir", Path),
            ("unlink", Path),
        ):
            dying(name, module)
        try:
            put(tmp_path, *NEW)
        except Died:
            assert done == step
    assert runs(tmp_path) in (OLD, NEW)
    put(tmp_path, *NEW)
    assert (runs(tmp_path), runs(tmp_path, "former")) == (NEW, OLD)
    assert sorted(each.name for each in tmp_path.iterdir() if not each.is_symlink()) == sorted(
        switch.name_of(*each) for each in (OLD, NEW)
    )


def test_the_settings_may_be_read_by_their_group_and_written_by_root_alone(tmp_path: Path) -> None:
    put(tmp_path, *OLD)
    assert (tmp_path / "current/broker.properties").stat().st_mode & 0o777 == 0o640
