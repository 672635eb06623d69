"""The commands that ask a cluster, before they ask: help, start time, misspelt flags."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from tests.own_time import ended_after_s

ROOT = Path(__file__).parents[3]
COMMANDS = [
    words.split()
    for words in (
        *("bench consume", "bench latency", "bench produce"),
        *("cluster describe", "cluster disks", "cluster health"),
        *("completion", "config check", "config describe"),
        *("configs alter", "configs describe", "configs list"),
        "consume",
        *("groups delete", "groups delete-offsets", "groups describe", "groups list"),
        "groups reset",
        "produce",
        "standalone",
        *("topics alter", "topics apply", "topics create", "topics delete"),
        *("topics delete-records", "topics describe", "topics list"),
    )
]
LOCAL = ("completion", "config", "standalone")
ASKING = [words for words in COMMANDS if words[0] not in LOCAL]


def test_help_loads_no_heavy_module() -> None:
    """In one process for all commands: what none has loaded after the last, none has loaded."""
    code = (
        "import sys; from kdist.cli.main import kdist\n"
        f"for words in {COMMANDS!r}:\n"
        "    try: kdist([*words, '--help'])\n"
        "    except SystemExit: print([m for m in ('rich', 'asyncio', 'kazoo', 'kdist.protocol')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    usages = [line for line in lines if line.startswith("Usage: -c ")]
    for words, usage in zip(COMMANDS, usages, strict=True):
        assert usage.startswith(f"Usage: -c {' '.join(words)}")
    assert lines.count("[]") == len(COMMANDS)


@pytest.mark.parametrize("words", [[], *COMMANDS])
def test_help_has_a_short_name(words: list[str]) -> None:
    short, long = (CliRunner().invoke(kdist, [*words, flag]) for flag in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)


def test_a_command_that_connects_loads_no_more_than_it_needs() -> None:
    """In one process for all, as above."""
    code = (
        "import sys; from kdist.cli.main import kdist\n"
        "for words in ('topics list', 'groups list', 'cluster health', 'configs list'):\n"
        "    try: kdist([*words.split(), '--broker', '127.0.0.1:1'])\n"
        "    except SystemExit: print([m for m in ('rich', 'kazoo', 'kdist.broker', 'kdist.config',"
        " 'kdist.client.producer', 'kdist.client.consumer', 'kdist.protocol.versions',"
        " 'kdist.storage') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["[]"] * 4


@pytest.mark.parametrize(
    "words",
    [
        "groups reset g --topic t:{}",
        "groups reset g --by-duration {}s",
        "topics list --broker 127.0.0.1:{}",
        "configs describe broker {}",
        "gate --broker 1 --zookeeper 127.0.0.1:{}",
    ],
)
def test_a_number_of_thousands_of_digits_is_refused_in_a_sentence(words: str) -> None:
    result = CliRunner().invoke(kdist, words.format("9" * 5_000).split())
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    assert result.stderr.count("9" * 5_000) >= 1


@pytest.mark.parametrize("words", ASKING)
def test_the_broker_option_is_in_the_help(words: list[str]) -> None:
    text = CliRunner().invoke(kdist, [*words, "--help"]).stdout
    assert "KDIST_BROKER" in text
    assert "127.0.0.1:9092" in text


@pytest.mark.parametrize("words", ASKING)
@pytest.mark.parametrize("option", ["--broker", "--bootstrap-server", "--bootstrap-servers"])
def test_the_broker_option_has_the_names_of_kafkas_tools(words: list[str], option: str) -> None:
    result = CliRunner().invoke(kdist, [*words, option, "127.0.0.1:1", "--help"])
    assert result.exit_code == 0, result.stderr
    assert option in result.stdout


@pytest.mark.parametrize("name", ["topics", "groups", "config", "configs", "cluster", "gate"])
def test_a_commands_help_is_a_whole_sentence(name: str) -> None:
    text = CliRunner().invoke(kdist, [name, "--help"]).stdout
    commands = text.partition("Commands:\n")[2]
    assert "..." not in commands
    assert commands.rstrip().endswith(".")


def test_a_command_that_has_not_connected_yet_starts_fast() -> None:
    taken = []
    for _ in range(3):
        started = subprocess.Popen(
            [sys.executable, "-m", "kdist.cli", "topics", "list", "--broker", "127.0.0.1:1"],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        taken.append(ended_after_s(started))
        assert started.wait() == 1
    assert statistics.median(taken) < 2.0  # 0.25 s on an idle machine


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["topics", "creat", "x"], "create"),
        (["topics", "create", "x", "--partition", "3"], "--partitions"),
        (["consume", "x", "--from-begining"], "--from-beginning"),
        (["produce", "x", "--kodec", "zstd"], "--codec"),
        (["standalone", "--broker", "3"], "--brokers"),
        (["groups", "descibe", "x"], "describe"),
        (["groups", "rest", "x"], "reset"),
        (["groups", "reset", "x", "--to-earlist"], "--to-earliest"),
        (["configs", "alter", "topic", "x", "--st", "a=b"], "--set"),
        (["cluster", "helth"], "health"),
        (["benhc", "produce"], "bench"),
        (["bench", "latncy"], "latency"),
    ],
)
def test_a_misspelt_word_gets_the_nearest(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(kdist, words)
    assert result.exit_code == 2
    assert meant in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        *("bench consume @", "bench latency @", "bench produce @"),
        *("broker --config @", "agent --config @", "load check --config @", "mirror --config @"),
        *("config check @", "config describe @", "config describe segment.bytes @"),
        *("configs alter topic @", "configs alter topic t --unset @"),
        *("configs describe broker @", "configs describe topic t @"),
        *("consume @", "consume --topic @", "produce @", "produce t --file @"),
        *("gate --config @", "standalone --data @"),
        *("groups delete g @", "groups delete-offsets @", "groups delete-offsets g --topic @"),
        *("groups describe @", "groups reset @", "groups reset g --topic @"),
        *("log dump @", "log find @", "log rebuild-indexes @", "log trim @", "log verify @"),
        *("topics alter @", "topics alter t --unset @", "topics apply @", "topics create t @"),
        *("topics delete @", "topics delete-records @", "topics delete-records @:1"),
        "topics describe t @",
    ],
)
def test_a_name_or_path_of_an_unset_variable_is_a_wrong_argument(line: str) -> None:
    result = CliRunner().invoke(kdist, [word.replace("@", "") for word in line.split()])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith((": it is empty.\n", " names no topic.\n"))
