"""What monitoring/ has: rules, dashboards' expressions, and the names of metrics that they use."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
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
