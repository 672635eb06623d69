"""Shell completion: what is offered, how fast, and that an unreachable cluster offers nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from tests.unit.cli.cli_cluster import CliCluster

ROOT = Path(__file__).parents[3]


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
    cluster.done("groups", "reset", "completer", "--to-latest", "--topic", "complete-a")
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
