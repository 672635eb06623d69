"""A small document is read from where a setting says, and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdist.runtime.fetching import fetch


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "a b.json"
    path.write_bytes(b"12345")
    assert fetch(path.as_uri(), 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        fetch(path.as_uri(), 4)
    with pytest.raises(FileNotFoundError):
        fetch((tmp_path / "none").as_uri(), 5)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "ftp://127.0.0.1/x", "data:,x", "/etc/passwd"]
)
def test_no_other_kind_of_url_is_read(url: str) -> None:
    with pytest.raises(OSError, match="neither a file: nor an https: URL"):
        fetch(url, 5)
