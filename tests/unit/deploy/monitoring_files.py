"""What monitoring/ has: rules, dashboards' expressions, and the names of metrics that they use."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.plugins.loader import init_plugin_loader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "monitoring"
ROLE = ROOT / "roles/kdist_monitoring"
RULE_FILES = sorted((MONITORING / "prometheus/rules").glob("*.yml"))
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))

# PromQL's own words; a name before a parenthesis is a function.
_WORDS = {"and", "or", "unless", "by", "on", "without", "group_left", "group_right", "ignoring"}


def rules() -> list[dict[str, Any]]:
    files = (yaml.safe_load(path.read_text()) for path in RULE_FILES)
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def shown() -> Iterator[tuple[str, str]]:
    """Every dashboard's expressions, with where they stand."""
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


def chosen_by() -> set[str]:
    """The queries that list what can be chosen above the panels."""
    dashboards = [json.loads(path.read_text()) for path in DASHBOARDS]
    variables = [each for dashboard in dashboards for each in dashboard["templating"]["list"]]
    return {each["query"] for each in variables if each["type"] == "query"}


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics in an expression: not strings, labels, grouping, functions."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    names = re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])", bare)
    return set(names) - _WORDS


def role_variables() -> dict[str, Any]:
    """The role's own variables and the defaults of the others, as templates where they are."""
    return {
        name: trust_as_template(value) if isinstance(value, str) else value
        for part in ("vars", "defaults")
        for name, value in yaml.safe_load((ROLE / part / "main.yml").read_text()).items()
    }


_find_plugins = functools.cache(init_plugin_loader)


def as_installed(path: Path, variables: dict[str, Any]) -> str:
    """A file of rules as role kdist_monitoring writes it."""
    (task,) = [
        each
        for task in yaml.safe_load((ROLE / "tasks/server.yml").read_text())
        for each in task.get("block", ())
        if "promtool check rules" in str(each)
    ]
    _find_plugins()  # the lookup in it
    content = trust_as_template(task["ansible.builtin.copy"]["content"])
    return str(Templar(DataLoader(), variables=variables | {"item": str(path)}).template(content))


def program(name: str) -> str:
    """The path of a program of Prometheus's, which `tools/setup_prometheus.sh` brings."""
    found = shutil.which(name) or shutil.which(name, path=ROOT / ".cache" / "bin")
    assert found, f"{name} is missing: `make setup` brings it"
    return found


class Silences(BaseHTTPRequestHandler):
    """The silences of an Alertmanager, as its API keeps them: each change makes a new one."""

    kept: dict[str, dict[str, Any]]

    def do_GET(self) -> None:
        self._answer(200, list(self.kept.values()))

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        old = given.pop("id")
        if datetime.fromisoformat(given["endsAt"]) <= datetime.now(UTC):
            return self._answer(400, "end time can't be in the past")
        if old and old not in self.kept:
            return self._answer(404, f"silence {old} not found")
        if old:
            self.kept[old]["status"] = {"state": "expired"}
        made = f"s{len(self.kept)}"
        self.kept[made] = given | {"id": made, "status": {"state": "active"}}
        return self._answer(200, {"silenceID": made})

    def do_DELETE(self) -> None:
        found = self.kept.get(self.path.rpartition("/")[2])
        if found is None or found["status"]["state"] == "expired":
            return self._answer(500, "already expired")
        found["status"] = {"state": "expired"}
        return self._answer(200, {})

    def _answer(self, status: int, body: object) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def alertmanager() -> Iterator[tuple[int, dict[str, dict[str, Any]]]]:
    """The port of something like an Alertmanager, and its silences by id, until the block ends."""
    kept: dict[str, dict[str, Any]] = {}
    handler = type("Kept", (Silences,), {"kept": kept})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, kept
        server.shutdown()
