"""Which release this is, as its installation says."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

import kdist
from kdist.cli.release import release


def test_an_installed_tree_is_of_the_release_that_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kdist-9.8.7.dist-info").mkdir()
    (tmp_path / "kdist_other-1.0.dist-info").mkdir()
    monkeypatch.setattr(kdist, "__file__", str(tmp_path / "kdist" / "__init__.py"))
    assert release() == "9.8.7"


def test_a_tree_that_is_installed_by_reference_is_found_too() -> None:
    assert release() == version("kdist")
