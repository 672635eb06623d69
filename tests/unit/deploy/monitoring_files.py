"""What monitoring/ has: rules, dashboards' expressions, and the names of metrics that they use."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "monitoring"
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
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics in an expression: not strings, labels, grouping, functions."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    names = re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])", bare)
    return set(names) - _WORDS


def program(name: str) -> str:
    """The path of a program of Prometheus's, which `tools/setup_prometheus.sh` brings."""
    found = shutil.which(name) or shutil.which(name, path=ROOT / ".cache" / "bin")
    assert found, f"{name} is missing: `make setup` brings it"
    return found
