"""The comparison of stopped brokers' logs."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.replicas import differences


def replica(root: Path, broker: str, *segments: bytes) -> Path:
    directory = root / broker / "chaos-0"
    directory.mkdir(parents=True)
    for number, content in enumerate(segments):
        (directory / f"{number:020}.log").write_bytes(content)
    return directory.parent


def test_replicas_may_have_begun_their_segments_at_different_offsets(tmp_path: Path) -> None:
    assert differences([replica(tmp_path, "1", b"ab", b"c"), replica(tmp_path, "2", b"abc")]) == []


def test_replicas_that_hold_different_bytes_differ(tmp_path: Path) -> None:
    directories = [replica(tmp_path, "1", b"ab", b"c"), replica(tmp_path, "2", b"abd")]
    assert differences(directories) == ["chaos-0: its replicas differ (3, 3 bytes)"]


def test_a_replica_that_is_shorter_differs(tmp_path: Path) -> None:
    directories = [replica(tmp_path, "1", b"ab"), replica(tmp_path, "2", b"abd")]
    assert differences(directories) == ["chaos-0: its replicas differ (2, 3 bytes)"]


def test_a_replica_that_is_not_there_is_missing(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    directories = [replica(tmp_path, "1", b"ab"), tmp_path / "2"]
    assert differences(directories) == ["chaos-0 is in 1 of 2 log directories only"]
