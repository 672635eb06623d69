"""The pages under docs/reference are what the code says."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from kdist.config.broker_config import BROKER_NAMES, TOPIC_NAMES
from kdist.errors import Error
from kdist.protocol import versions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """tools/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current(generate: ModuleType) -> None:
    assert generate.main(["--check"]) == 0


def test_the_same_code_gives_the_same_pages(generate: ModuleType) -> None:
    for page in generate.PAGES.values():
        assert page() == page()


def test_a_stale_missing_or_unknown_page_is_named(
    generate: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages = {name: functools.cache(page) for name, page in generate.PAGES.items()}
    monkeypatch.setattr(generate, "PAGES", pages)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "REFERENCE", tmp_path / "reference")
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "reference" / "errors.md").write_text("old")
    (tmp_path / "reference" / "metrics.md").unlink()
    (tmp_path / "reference" / "stray.md").write_text("")
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "reference/metrics.md is stale: run `make generate`.",
        "reference/errors.md is stale: run `make generate`.",
        "reference/stray.md is not a page that `make generate` writes.",
    ]


def test_every_name_of_a_setting_is_on_its_page(generate: ModuleType) -> None:
    page = generate.settings_page()
    assert not [name for name in BROKER_NAMES | TOPIC_NAMES if f"`{name}`" not in page]


def test_every_error_is_on_its_page(generate: ModuleType) -> None:
    page = generate.errors_page()
    assert all(f"`{row.name}`" in page and row.sentence in page for row in Error)


def test_a_table_is_aligned_and_escapes_what_would_break_it(generate: ModuleType) -> None:
    assert generate.table([{"A": "x|y", "B": "1"}, {"A": "z", "B": "22"}]).splitlines() == [
        "| A    | B  |",
        "|------|----|",
        "| x\\|y | 1  |",
        "| z    | 22 |",
    ]


def test_every_api_is_on_its_page_with_its_range_and_meaning(generate: ModuleType) -> None:
    page = generate.protocol_page()
    for api in versions.TABLE:
        (row,) = re.findall(rf"(?m)^\| {api.key} .*$", page)
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1:3] == [api.name, f"{api.oldest} to {api.newest}"]
        assert cells[-1].endswith(".")
