"""A real Prometheus, configured by role kdist_monitoring's template, with the node exporter."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]

from tests.integration.broker_processes import settled
from tests.unit.deploy.monitoring_files import (
    ROLE,
    ROOT,
    RULE_FILES,
    as_installed,
    program,
    role_variables,
)

_STOPPED_S = 20.0


@contextmanager
def running(directory: Path, name: str, *command: str | Path) -> Iterator[None]:
    """A program with what it says in a file of that name; killed at the end."""
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait(_STOPPED_S)


def page_of(url: str) -> str:
    """What a URL has; nothing if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as got:
            return str(got.read().decode())
    except (OSError, ValueError):
        return ""


class Answer(NamedTuple):
    """What a query found: the error, or the values that are numbers."""

    error: str
    values: list[float]


class Prometheus(NamedTuple):
    """A running server."""

    address: str

    def get(self, path: str, **parameters: str) -> Any:
        """The answer's JSON, which says so if the query is wrong."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self.address}/{path}?{query}", timeout=10) as got:
                return json.load(got)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def is_ready(self) -> bool:
        return page_of(f"http://{self.address}/-/ready") != ""

    def query(self, expression: str) -> Answer:
        got = self.get("api/v1/query", query=expression)
        if got["status"] != "success":
            return Answer(got["error"], [])
        values = [float(each["value"][1]) for each in got["data"]["result"]]
        return Answer("", [each for each in values if not math.isnan(each)])

    def names(self) -> set[str]:
        """Every metric that it has."""
        return set(self.get("api/v1/label/__name__/values")["data"])


@contextmanager
def prometheus(directory: Path, site: dict[str, Any]) -> Iterator[Prometheus]:
    """A server that scrapes the site once a second and evaluates kdist's rules.

    `site` is what playbooks know of it: the variables of the role's template.
    """
    variables = role_variables() | site | {"kdist_monitoring_scrape_interval": "1s"}
    template = trust_as_template((ROLE / "templates/prometheus.yml.j2").read_text())
    made = str(Templar(DataLoader(), variables=variables).template(template))
    place, rules = "/etc/prometheus/kdist", directory / "rules"
    assert f"{place}/*.yml" in made
    config = directory / "prometheus.yml"
    config.write_text(made.replace(place, str(rules)))
    rules.mkdir()
    for path in RULE_FILES:
        (rules / path.name).write_text(as_installed(path, variables))
    shutil.copytree(ROOT / "docs/runbooks", directory / "consoles/kdist")
    server = Prometheus(f"127.0.0.1:{site['kdist_ports']['prometheus']}")
    options = {
        "config.file": config,
        "storage.tsdb.path": directory / "prometheus",
        "web.console.templates": directory / "consoles",
        "web.listen-address": server.address,
    }
    command = [program("prometheus"), *(f"--{name}={value}" for name, value in options.items())]
    with running(directory, "prometheus", *command):
        settled(server.is_ready)
        yield server
