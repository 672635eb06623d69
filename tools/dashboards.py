"""Writes the dashboards of monitoring/dashboards/ from dashboards.yml; `--check` compares.

They work in any Grafana. dashboards.yml has what differs between panels (titles, units,
expressions); what all panels share is here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lab.hosts import parse_yaml

ROOT = Path(__file__).resolve().parents[1]
PANELS = ROOT / "monitoring" / "dashboards.yml"
PLACE = ROOT / "monitoring" / "dashboards"

_COLUMNS, _HEIGHT = 2, 8
_WIDTH = 24 // _COLUMNS


class Panel(NamedTuple):
    """One panel. `kind` is Grafana's panel type; a table has a column for each expression."""

    title: str
    unit: str
    expressions: dict[str, str]  # by legend
    kind: str = "timeseries"


def read_panels() -> dict[str, list[Panel]]:
    """The panels of each dashboard; a `yaml.YAMLError` names a title or legend given twice."""
    declared = parse_yaml(PANELS.read_text(encoding="utf-8"))
    return {
        title: [Panel(p["title"], p["unit"], p["shows"], p.get("is", "timeseries")) for p in panels]
        for title, panels in declared.items()
    }


def dashboard(title: str, panels: list[Panel]) -> dict[str, Any]:
    """A dashboard as Grafana imports it, with a variable for the Prometheus data source."""
    return {
        "uid": f"kdist-{slug(title)}",
        "title": f"kdist: {title}",
        "tags": ["kdist"],
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "schemaVersion": 39,
        "templating": {"list": [source_variable(), datacenter_variable()]},
        "panels": [shown(number, panel) for number, panel in enumerate(panels)],
    }


def slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def source_variable() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def datacenter_variable() -> dict[str, Any]:
    return {
        "name": "dc",
        "type": "query",
        "label": "Datacenter",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": "label_values(up, dc)",
        "refresh": 1,
    }


def shown(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    made: dict[str, Any] = {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": list(targets(panel)),
    }
    if panel.kind == "table":
        made["transformations"] = list(one_row_each(panel))
    return made


def targets(panel: Panel) -> Iterator[dict[str, Any]]:
    is_table = panel.kind == "table"
    for letter, (legend, expression) in zip("ABCDEFGH", panel.expressions.items(), strict=False):
        yield {
            "refId": letter,
            "expr": expression,
            "legendFormat": legend,
            "instant": is_table,
            "format": "table" if is_table else "time_series",
        }


def one_row_each(panel: Panel) -> Iterator[dict[str, Any]]:
    """Join the expressions' rows by their labels, and call each column by its legend."""
    names = {
        f"Value #{letter}": legend
        for letter, legend in zip("ABCDEFGH", panel.expressions, strict=False)
    }
    yield {"id": "merge", "options": {}}
    options = {"excludeByName": {"Time": True}, "renameByName": names}
    yield {"id": "organize", "options": options}


def pages() -> dict[Path, str]:
    """Every file with its content."""
    return {
        PLACE / f"{slug(title)}.json": json.dumps(dashboard(title, panels), indent=2) + "\n"
        for title, panels in read_panels().items()
    }


def main(arguments: list[str]) -> int:
    """Write stale files; with `--check`, name them instead and return 1."""
    try:
        found = pages()
    except yaml.YAMLError as error:
        print(f"{PANELS}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    stale = {p: text for p, text in found.items() if not p.exists() or p.read_text() != text}
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run `make generate`.", file=sys.stderr)
        return 1 if stale else 0
    PLACE.mkdir(parents=True, exist_ok=True)
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
