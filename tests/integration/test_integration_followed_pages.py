"""The pages for applications, followed one after the other on one cluster, the README first."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_commands import blocks, environment, run_block, shows
from standalone_process import ROOT, TIMEOUT_S, free_ports

README = ROOT / "README.md"
GUIDES = ROOT / "docs/guides"
FIRST_STEPS, PRODUCER, CONSUMER, METRICS, ADMIN, COMMANDS = (
    GUIDES / f"{name}.md"
    for name in ("first-steps", "producer", "consumer", "client-metrics", "admin", "commands")
)
OTHER_CLIENTS = [
    GUIDES / f"from-{name}.md" for name in ("kafka-python", "confluent-kafka", "aiokafka")
]
START = "kdist standalone --brokers 3"
APPLICATION_LINES_MAX = 10
RECORDS_OF_THE_README = 3


class Followed:
    """The directory in which a reader types, and the ports that stand for the pages'."""

    def __init__(self, directory: Path, installed: Path | None = None) -> None:
        self.directory = directory
        self.port = free_ports(3)  # ZooKeeper has the port below, as on the pages
        self.around = environment(directory, self.port)
        if installed is not None:
            self.around["PATH"] = f"{installed}:{os.environ['PATH']}"
        self.said = ""

    def here(self, text: str) -> str:
        for host in ("localhost", "127.0.0.1"):
            text = text.replace(f"{host}:9092", f"127.0.0.1:{self.port}")
        return text.replace("localhost:9091", f"127.0.0.1:{self.port - 1}")

    def type(self, commands: list[tuple[str, str]]) -> list[str]:
        """What each block printed."""
        return [
            run_block(self.here(command), shown, self.directory, self.around)
            for command, shown in commands
        ]

    def run_python(self, page: Path, show: Callable[..., object] = repr) -> dict[str, Any]:
        """The page's blocks, which share their names, as on the page."""
        names: dict[str, Any] = {"print": lambda *shown: [show(each) for each in shown]}
        for number, block in enumerate(python_of(page)):
            exec(compile(self.here(block), f"{page.name}, block {number}", "exec"), names)
        return names

    def run_as_program(self, page: Path) -> None:
        """The page's blocks, with the Python that is on the path."""
        program = self.here("\n".join(python_of(page)))
        done = subprocess.run(
            ["python", "-c", program],
            cwd=self.directory,
            env=self.around,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr


def python_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    with started(Followed(tmp_path)) as reader:
        yield reader


@contextmanager
def started(reader: Followed) -> Iterator[Followed]:
    """The cluster that the pages start, ended by a Ctrl-C that it must obey."""
    cluster = subprocess.Popen(
        f"exec {START} --port {reader.port}",
        shell=True,
        cwd=reader.directory,
        env=reader.around,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert cluster.stdout is not None
    try:
        for line in iter(cluster.stdout.readline, ""):
            reader.said += line
            if line.startswith("Ctrl-C"):
                break
        yield reader
    finally:
        cluster.send_signal(signal.SIGINT)
        cluster.wait(timeout=TIMEOUT_S)
    assert cluster.returncode == 0


class AllRead(Exception):
    """The README's loop waits for more: this ends it."""


def follow_readme(followed: Followed) -> None:
    install, topic, *_ = [command for command, _ in blocks(README)]
    assert install.splitlines()[0].endswith("-m venv .venv")
    assert install.splitlines()[-1] == START
    activate, create = topic.splitlines()
    assert activate in install.splitlines()
    followed.type([(create, "")])
    (application,) = python_of(README)
    assert len([each for each in application.splitlines() if each]) <= APPLICATION_LINES_MAX
    shown: list[object] = []

    def show(value: object) -> None:
        shown.append(value)
        if len(shown) == 2 + 4 * RECORDS_OF_THE_README:
            raise AllRead

    with pytest.raises(AllRead):
        followed.run_python(README, show)
    assert shown[:2] == ["at offset", 0]
    assert {b"/start", b"/basket", b"/pay"} <= set(shown[2:])


@pytest.mark.timeout(300)
def test_the_pages_can_be_followed_one_after_the_other_on_one_cluster(followed: Followed) -> None:
    follow_readme(followed)
    (start, table), *steps = blocks(FIRST_STEPS)
    assert (start, len(steps)) == (START, 9)
    assert [each for each in table.splitlines() if each and not shows(followed.said, each)] == []
    outputs = followed.type(steps)
    assert any("hello, log" in each and "/basket" in each for each in outputs)
    assert followed.run_python(PRODUCER)["written"] == 10_000
    assert followed.run_python(CONSUMER)["total"] > 0
    text = followed.run_python(METRICS)["text"]
    assert 'kdist_producer_records_sent_total{client_id="orders",topic="clicks"} 3.0' in text
    assert 'kdist_consumer_lag_records{client_id="reports",partition="0",topic="clicks"}' in text
    for page in OTHER_CLIENTS:
        followed.run_python(page)
    shown: list[object] = []
    followed.run_python(ADMIN, shown.append)
    assert {"TOPIC_ALREADY_EXISTS", 3, "86400000", "172800000"} <= {
        each for each in shown if isinstance(each, str | int)
    }
    followed.type(blocks(COMMANDS))


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_what_the_readme_installs_serves_the_pages_in_a_directory_of_any_name(
    tmp_path: Path,
) -> None:
    """Not editable, in an environment of its own; each page is a program."""
    unwanted = shutil.ignore_patterns(".*", "build", "*.egg-info", "*.so", "_compiled*.c")
    tree = shutil.copytree(ROOT, tmp_path / "josé" / "kdist", ignore=unwanted)
    install = blocks(README)[0][0].splitlines()
    assert install.pop() == START
    subprocess.run("\n".join(["set -e", *install]), shell=True, cwd=tree, check=True)
    with started(Followed(tree, tree / ".venv" / "bin")) as reader:
        reader.type(blocks(FIRST_STEPS)[1:])
        for page in (PRODUCER, CONSUMER, *OTHER_CLIENTS, ADMIN):
            reader.run_as_program(page)
        reader.type(blocks(COMMANDS))
