"""The commands before they ask: help, completion, start time, misspelt flags, the release."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

import kdist as package
from kdist.cli.main import kdist
from kdist.cli.release import release
from tests.own_time import ended_after_s
from tests.unit.cli.cli_cluster import CliCluster

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
        *("users create", "users delete", "users list", "users passwd"),
    )
]
LOCAL = ("completion", "config", "standalone")
ASKING = [words for words in COMMANDS if words[0] not in LOCAL]


def offered(line: str, broker: str) -> list[str]:
    """What bash would offer behind `line`, whose last word is the begun one."""
    return [each.partition(",")[2] for each in answered(line, broker)]


def environment_of(line: str, broker: str) -> dict[str, str]:
    """The variables by which bash asks."""
    return {
        "_KDIST_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "KDIST_BROKER": broker,
    }


def answered(line: str, broker: str) -> list[str]:
    """The same with the kind of each: "plain,groups"."""
    environment = environment_of(line, broker)
    done = subprocess.run(
        [sys.executable, "-c", "from kdist.cli.main import main; main()"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def offered_here(line: str, broker: str) -> list[str]:
    """What bash would offer, without a process of its own."""
    environment = environment_of(line, broker)
    result = CliRunner().invoke(kdist, [], env=environment, prog_name="kdist")
    assert result.stderr == ""
    return [each.partition(",")[2] for each in result.stdout.splitlines()]


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
        (["topics", "--list"], "'list'"),
        (["groups", "--describe", "--group", "x"], "'describe'"),
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


@pytest.mark.parametrize(
    "line",
    [
        *("config check @", "config describe @", "topics apply @", "produce t --file @"),
        *("log dump @", "log find @", "log rebuild-indexes @", "log trim @", "log verify @"),
        *("broker --config @", "gate --config @", "load --config @", "standalone --data @"),
    ],
)
def test_file_names_are_left_to_the_shell(line: str) -> None:
    environment = environment_of("kdist " + line.replace("@", "/et"), "127.0.0.1:1")
    result = CliRunner().invoke(kdist, [], env=environment, prog_name="kdist")
    assert result.stdout == "file,/et\n"


def test_commands_and_options_are_offered() -> None:
    assert offered("kdist gr", "127.0.0.1:1") == ["groups"]
    assert offered_here("kdist groups re", "127.0.0.1:1") == ["reset"]
    assert "--to-earliest" in offered_here("kdist groups reset x --to", "127.0.0.1:1")
    assert offered_here("kdist configs describe br", "127.0.0.1:1") == ["broker"]


def test_names_come_from_the_cluster(cluster: CliCluster) -> None:
    for name in ("complete-a", "complete-b"):
        cluster.done("topics", "create", name)
    cluster.done("groups", "reset", "--yes", "completer", "--to-latest", "--topic", "complete-a")
    both = ["complete-a", "complete-b"]
    assert offered("kdist topics describe complete", cluster.address) == both
    assert offered_here("kdist consume complete", cluster.address) == both
    assert offered_here("kdist consume --topic complete", cluster.address) == both
    assert offered_here("kdist configs describe topic complete", cluster.address) == both
    assert offered_here("kdist groups describe compl", cluster.address) == ["completer"]


def test_an_unreachable_cluster_soon_offers_nothing() -> None:
    start = time.monotonic()
    assert offered("kdist topics describe x", "127.0.0.1:1") == []
    assert time.monotonic() - start < 10  # 0.3 s on a machine that does nothing else


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shells_completion_script_is_printed(shell: str) -> None:
    result = CliRunner().invoke(kdist, ["completion", shell])
    assert result.exit_code == 0
    assert "_KDIST_COMPLETE" in result.stdout


def test_an_installed_tree_is_of_the_release_that_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kdist-9.8.7.dist-info").mkdir()
    (tmp_path / "kdist_other-1.0.dist-info").mkdir()
    monkeypatch.setattr(package, "__file__", str(tmp_path / "kdist" / "__init__.py"))
    assert release() == "9.8.7"


def test_a_tree_that_is_installed_by_reference_is_found_too() -> None:
    assert release() == version("kdist")


@pytest.mark.parametrize("command", ["dump", "verify", "find", "trim", "rebuild-indexes"])
def test_every_help_about_logs_has_examples(command: str) -> None:
    result = CliRunner().invoke(kdist, ["log", command, "--help"])
    assert result.exit_code == 0
    assert f"kdist log {command} " in result.stdout
    assert "--json" in result.stdout
