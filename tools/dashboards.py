"""Writes the dashboards of monitoring/dashboards/ from dashboards.yml; `--check` compares.

They work in any Grafana. dashboards.yml has what differs between panels (titles, units,
expressions); what all panels share is here. A panel that shows hosts or disks one by one shows
those that are chosen above it: `narrowed` adds their variables to its expressions.
"""

from __future__ import annotations

import json
import re
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


# Who is chosen above the panels: label, title, query. Each follows from those before it.
VARIABLES = (
    ("dc", "Datacenter", 'label_values(up{job="node"}, dc)'),
    ("host", "Host", 'label_values(up{job="node", dc="$dc"}, host)'),
    ("disk", "Disk", 'label_values(up{job="kdist-broker", dc="$dc", host=~"$host"}, disk)'),
)
# A broker that runs another release, or with other settings, than five minutes ago.
ROLLS = (
    'kdist_build_info{dc="$dc"} unless kdist_build_info{dc="$dc"} offset 5m'
    ' and on (host, disk) kdist_build_info{dc="$dc"} offset 5m'
)
_HISTORY_POINTS = 60  # Grafana shows no more fields in a row than have room
_SOURCE = {"type": "prometheus", "uid": "${source}"}


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
    """A dashboard as Grafana imports it, with the variables that its expressions use."""
    shown_panels = [shown(number, panel) for number, panel in enumerate(panels)]
    asked = " ".join(each["expr"] for panel in shown_panels for each in panel["targets"])
    return {
        "uid": f"kdist-{slug(title)}",
        "title": f"kdist: {title}",
        "tags": ["kdist"],
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "schemaVersion": 39,
        "templating": {
            "list": [
                source_variable(),
                *(variable(*each) for each in VARIABLES if f"${each[0]}" in asked),
            ]
        },
        "annotations": {"list": [rolls()]},
        "panels": shown_panels,
    }


def slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def source_variable() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """One datacenter, or any number of hosts and disks: all, unless some are chosen."""
    made = {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,  # when the time range changes
        "sort": 1,
    }
    return made if name == "dc" else made | {"multi": True, "includeAll": True, "allValue": ".*"}


def rolls() -> dict[str, Any]:
    return {
        "name": "Rolls",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "purple",
        "expr": ROLLS,
        "step": "30s",
        "titleFormat": "{{host}} {{disk}} runs {{version}}",
        "textFormat": "release {{release}}, settings {{settings}}, unit {{unit}}",
    }


def shown(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    made: dict[str, Any] = {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": list(targets(panel)),
    }
    if panel.kind == "status-history":
        made["fieldConfig"]["defaults"]["color"] = {"mode": "continuous-GrYlRd"}
        made["maxDataPoints"] = _HISTORY_POINTS
    if panel.kind == "heatmap":
        made["options"] = {"calculate": False, "yAxis": {"unit": panel.unit}}
    if panel.kind == "table":
        made["transformations"] = list(one_row_each(panel))
    return made


def targets(panel: Panel) -> Iterator[dict[str, Any]]:
    form = {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series")
    for letter, (legend, expression) in zip("ABCDEFGH", panel.expressions.items(), strict=False):
        yield {
            "refId": letter,
            "expr": narrowed(legend, expression),
            "legendFormat": legend,
            "instant": form == "table",
            "format": form,
        }


def narrowed(legend: str, expression: str) -> str:
    """The expression for the chosen hosts and disks alone, where it shows them one by one (pure).

    Hosts and disks are told apart by the legend, or by the labels that the expression groups by.
    """
    groups = re.findall(r"by \(([^)]*)\)", expression)
    told = {*re.findall(r"{{(\w+)}}", legend), *re.findall(r"\w+", " ".join(groups))}
    more = "".join(f', {name}=~"${name}"' for name in ("host", "disk") if name in told)
    return expression.replace('dc="$dc"', f'dc="$dc"{more}')


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
