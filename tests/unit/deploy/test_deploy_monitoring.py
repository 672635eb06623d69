"""Rules and dashboards speak of metrics that exist, and every alert is tested and explained."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring_files import (
    DASHBOARDS,
    MONITORING,
    ROOT,
    RULE_FILES,
    metrics_in,
    program,
    rules,
    shown,
)

import kdist.metrics
from kdist.metrics.declare import Metrics
from tools import dashboards

RUNBOOKS = ROOT / "docs" / "runbooks"
TEST_FILES = sorted((MONITORING / "prometheus/tests").glob("*.yml"))

# What Prometheus itself makes, and what every Python and Go process with its library shows.
OF_PROMETHEUS = {
    "ALERTS",
    "process_max_fds",
    "process_open_fds",
    "process_start_time_seconds",
    "prometheus_config_last_reload_successful",
    "prometheus_rule_evaluation_failures_total",
    "up",
}

ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def declared() -> Iterator[str]:
    """Every name that kdist shows, with those that a histogram has."""
    for info in pkgutil.iter_modules(kdist.metrics.__path__, "kdist.metrics."):
        for value in vars(importlib.import_module(info.name)).values():
            if inspect.isclass(value) and issubclass(value, Metrics):
                for row in value.TABLE:
                    is_histogram = row.type == "histogram"
                    ends = ("_bucket", "_sum", "_count") if is_histogram else ("",)
                    yield from (f"{row.name}{end}" for end in ends)


def of_node_exporter() -> set[str]:
    lines = (MONITORING / "node-exporter-metrics.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


EXISTING = {*declared(), *RECORDED, *OF_PROMETHEUS, *of_node_exporter()}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('up{job="a"} == 0', {"up"}),
        ("sum by (dc, le) (rate(a_total[5m])) / on (dc) group_left b:c:d", {"a_total", "b:c:d"}),
        ("1 - avg(x) > 2.5e3 or vector(0)", {"x"}),
        ('label_replace(a_b, "disk", "$1", "mount", "/data/(.+)")', {"a_b"}),
    ],
)
def test_the_names_of_an_expression_are_found(expression: str, names: set[str]) -> None:
    assert metrics_in(expression) - {"e3"} == names


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert", rule.get("record")))
def test_a_rule_speaks_of_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert metrics_in(rule["expr"]) - EXISTING == set()


def test_every_panel_speaks_of_metrics_that_exist() -> None:
    found = list(shown())
    assert len(found) > 50
    unknown = [(where, metrics_in(expr) - EXISTING) for where, expr in found]
    assert [each for each in unknown if each[1]] == []


def test_every_panel_is_of_one_datacenter() -> None:
    whole = [where for where, expr in shown() if 'dc="$dc"' not in expr and "ALERTS" not in expr]
    assert whole == []


def test_what_is_shown_by_host_or_disk_is_of_those_that_are_chosen() -> None:
    for title, panels in dashboards.read_panels().items():
        made = dashboards.dashboard(title, panels)
        names = [each["name"] for each in made["templating"]["list"]]
        for panel in made["panels"]:
            for target in panel["targets"]:
                told = re.findall(r"{{(host|disk)}}", target["legendFormat"])
                assert all(f'{name}=~"${name}"' in target["expr"] for name in told), target
                assert set(re.findall(r"\$(\w+)", target["expr"])) <= set(names), target
    cluster = 'sum by (dc) (up{dc="$dc"})'
    assert dashboards.narrowed("up", cluster) == cluster
    assert dashboards.narrowed("", 'sum by (disk, host) (a{dc="$dc"}) / b{dc="$dc"}') == (
        'sum by (disk, host) (a{dc="$dc", host=~"$host", disk=~"$disk"})'
        ' / b{dc="$dc", host=~"$host", disk=~"$disk"}'
    )


def test_every_recorded_series_is_used() -> None:
    used = {name for rule in ALERTS for name in metrics_in(rule["expr"])}
    used |= {name for _, expression in shown() for name in metrics_in(expression)}
    assert set(RECORDED) - used == set()


def test_the_dashboards_are_generated_from_their_panels() -> None:
    assert dashboards.main(["--check"]) == 0
    assert {path.name for path in DASHBOARDS} == {path.name for path in dashboards.pages()}


def test_a_dashboard_or_legend_given_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = dashboards.PANELS.read_text(encoding="utf-8")
    monkeypatch.setattr(dashboards, "PANELS", tmp_path / "panels.yml")
    title, legend = "\nCluster:\n", "      brokers up: 'up'\n"
    assert title in text
    for twice in (
        text + title.lstrip() + "  []\n",
        text.replace("    shows:\n", f"    shows:\n{legend}{legend}", 1),
    ):
        (tmp_path / "panels.yml").write_text(twice, encoding="utf-8")
        assert dashboards.main(["--check"]) == 1
        assert "is given twice" in capsys.readouterr().err


def test_a_dashboard_has_room_for_all_its_expressions() -> None:
    for title, panels in dashboards.read_panels().items():
        made = dashboards.dashboard(title, panels)
        told = [len(panel["targets"]) for panel in made["panels"]]
        assert told == [len(panel.expressions) for panel in panels]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"].keys() - {"monitor"} == {"severity"}
    assert alert["labels"]["severity"] in ("critical", "warning", "none")
    said = alert["annotations"]
    assert said.keys() == {"summary", "description", "runbook_url"}
    assert said["summary"].endswith(".")
    assert said["description"].endswith(".")
    assert said["runbook_url"] == f"docs/runbooks/{alert['alert']}.md"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_runbook_looks_before_it_acts(alert: dict[str, Any]) -> None:
    page = (RUNBOOKS / f"{alert['alert']}.md").read_text()
    assert re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page, flags=re.S), re.M) == [
        alert["alert"],
        "Look",
        "Do",
    ]


def test_every_runbook_is_an_alerts_and_in_the_list() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|$", readme(), re.M)
    assert pages == {alert["alert"] for alert in ALERTS}
    assert listed == [(each["alert"], each["labels"]["severity"]) for each in in_order()]


def test_runbooks_use_arguments_that_playbooks_and_the_gate_accept() -> None:
    """A host by the inventory's name, and a broker's file: it has what its topics ask for."""
    text = "".join(path.read_text() for path in RUNBOOKS.glob("*.md"))
    assert set(re.findall(r"-e disk=(\S+?):", text)) == {"NAME"}
    assert "gate --broker" not in text


def readme() -> str:
    return (RUNBOOKS / "README.md").read_text()


def in_order() -> list[dict[str, Any]]:
    """The alerts as the list of runbooks has them: brokers first, monitoring last."""
    order = (
        "BrokerDown",
        "CanaryFails",
        "DiskNotMounted",
        "ZooKeeperServerDown",
        "MirrorDown",
        "LoadFailed",
        "HostDown",
        "Watchdog",
    )
    groups = [
        group["rules"]
        for path in RULE_FILES
        for group in yaml.safe_load(path.read_text())["groups"]
        if "alert" in group["rules"][0]
    ]
    groups.sort(key=lambda rules: order.index(rules[0]["alert"]))
    return [rule for group in groups for rule in group]


def test_every_alert_is_shown_to_fire_and_not_to_fire() -> None:
    cases = [case for path in TEST_FILES for case in yaml.safe_load(path.read_text())["tests"]]
    assert {case["name"] for case in cases} == {alert["alert"] for alert in ALERTS}
    for case in cases:
        checks = case["promql_expr_test"]
        assert all(f'alertname="{case["name"]}"' in check["expr"] for check in checks)
        assert checks[-1]["exp_samples"], case["name"]
        assert case["name"] == "Watchdog" or checks[0]["exp_samples"] == [], case["name"]


ROLL_TEST = """
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - series: 'kdist_build_info{dc="dc1",host="b1",disk="d01",version="1",settings="s"}'
        values: '1x19 stale'
      - series: 'kdist_build_info{dc="dc1",host="b1",disk="d01",version="2",settings="s"}'
        values: '_x20 1x40'
      - series: 'kdist_build_info{dc="dc1",host="b2",disk="d01",version="1",settings="s"}'
        values: '1x15 stale _x3 1x40'
      - series: 'kdist_build_info{dc="dc1",host="b3",disk="d01",version="2",settings="s"}'
        values: '_x20 1x40'
    promql_expr_test:
      - expr: EXPRESSION
        eval_time: 9m
        exp_samples: []
      - expr: EXPRESSION
        eval_time: 12m
        exp_samples:
          - {labels: '{host="b1"}', value: 1}
      - expr: EXPRESSION
        eval_time: 18m
        exp_samples: []
"""


@pytest.mark.slow
def test_a_roll_is_marked_where_a_broker_runs_something_else_not_where_it_was_restarted_or_is_new(
    tmp_path: Path,
) -> None:
    expression = f"count by (host) ({dashboards.ROLLS})".replace("$dc", "dc1")
    (tmp_path / "roll.yml").write_text(ROLL_TEST.replace("EXPRESSION", expression))
    judged = subprocess.run(
        [program("promtool"), "test", "rules", "roll.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.slow  # `make setup` brings promtool; `make check` does without
@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_prometheus_accepts_the_rules_and_their_tests(path: Path) -> None:
    judged = subprocess.run(
        [program("promtool"), "test", "rules", path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
