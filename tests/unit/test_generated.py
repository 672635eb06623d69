"""The pages under docs/reference are what the code says, and the sample file is one kdist takes."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from kdist.config.broker_config import BROKER_NAMES, BROKER_TABLE, TOPIC_NAMES
from kdist.config.load import load_broker
from kdist.config.topic import TopicSettings
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


def test_the_sample_file_is_taken_without_a_word(generate: ModuleType) -> None:
    config = load_broker(generate.sample_file(), "sample")
    assert not config.warnings
    assert config.topic_defaults == TopicSettings()


def test_the_sample_file_with_every_default_written_out_says_the_same(
    generate: ModuleType,
) -> None:
    sample = generate.sample_file()
    everything = load_broker(re.sub(r"(?m)^#(?=[a-z.]+=)", "", sample), "sample")
    of_topics = [row for row in TopicSettings.TABLE if row.broker_names]
    assert len(everything.layers[0].given) == len(BROKER_TABLE) + len(of_topics)
    as_it_is = load_broker(sample, "sample")
    assert everything.broker == as_it_is.broker
    assert everything.storage == as_it_is.storage
    assert everything.topic_defaults == as_it_is.topic_defaults


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


def test_every_command_is_on_the_page_of_the_command_line(generate: ModuleType) -> None:
    @click.group()
    def program() -> None:
        """A log."""

    @program.group()
    def log() -> None:
        """Look at a log."""

    @log.command()
    @click.argument("directory")
    @click.option("--json/--table", help="How to print.")
    def dump(directory: str, json: bool) -> None:
        """Print the batches of DIRECTORY."""

    page = generate.cli_page(program)
    assert re.findall("(?m)^## .*$", page) == ["## kdist", "## kdist log", "## kdist log dump"]
    assert "kdist log dump [OPTIONS] DIRECTORY" in page
    assert "Print the batches of DIRECTORY." in page
    assert "| `--json`, `--table` | How to print. |" in page


def test_the_page_of_the_command_line_says_what_help_says(generate: ModuleType) -> None:
    @click.command()
    @click.option("--codec", type=click.Choice(["gzip", "zstd"]), default="gzip", show_default=True)
    @click.option("--broker", metavar="HOST:PORT", envvar="BROKER", show_envvar=True, help="Whom.")
    @click.option("--old", hidden=True, help="Nobody is told of it.")
    def program(codec: str, broker: str, old: str) -> None:
        """Write.

        \b
        Examples:
          program --codec zstd
        """

    page = generate.cli_page(program)
    assert "| `--codec` `[gzip\\|zstd]` | [default: gzip]" in page
    assert "| `--broker` `HOST:PORT`   | Whom. [env var: BROKER]" in page
    assert "--old" not in page
    assert "```\nExamples:\n  program --codec zstd\n```\n" in page
