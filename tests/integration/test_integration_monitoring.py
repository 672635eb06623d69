"""Every expression of rules and dashboards, asked of a Prometheus that scrapes real processes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.integration.broker_processes import settled
from tests.integration.live_prometheus import Prometheus, page_of
from tests.integration.monitored_site import Monitored, monitored_site
from tests.unit.deploy.monitoring_files import chosen_by, metrics_in, rules, shown
from tools import dashboards

pytestmark = pytest.mark.xdist_group("monitoring")

T = TypeVar("T")

CHOSEN = {"$dc": "dc1", "$host": ".*", "$disk": ".*"}


def filled(expression: str) -> str:
    """As Grafana fills in what is chosen above the panels."""
    for name, value in CHOSEN.items():
        expression = expression.replace(name, value)
    return expression


PANELS = [(where, filled(expression)) for where, expression in shown()]
RULES = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
RECORDED = [(rule["record"], rule["expr"]) for rule in rules() if "record" in rule]

ABSENT = {
    "kdist_mirror_refused",  # there for topics that the target refuses
    *("kdist_acl_current", "kdist_acl_unreadable"),  # with ACLs
    *("kdist_tls_authority_seconds", "kdist_tls_certificate_seconds", "kdist_tls_change_refused"),
    *("kdist_smart_answer_age_seconds", "kdist_smart_timeouts_total"),  # for disks with SMART
    *("node_bonding_active", "node_bonding_slaves", "node_systemd_unit_state"),
    *("node_edac_correctable_errors_total", "node_edac_uncorrectable_errors_total"),
}
NO_DISKS = {"node_filesystem_device_error"}  # nothing is mounted below /data
# What has no numbers here: a server that is alone has no followers, and new records are in memory.
EMPTY = {
    "kdist_zookeeper_synced_followers",
    "kdist_zookeeper_voting_servers",
    "kdist_fetch_cold_seconds_bucket",
    "broker:kdist_fetch_cold_seconds:p99_5m",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    with monitored_site(tmp_path_factory.mktemp("monitored")) as running:
        yield running


@pytest.fixture
def prometheus(site: Monitored) -> Prometheus:
    return site.prometheus


def selectors(expression: str) -> list[str]:
    """The metrics in an expression whose labels are asked for, with these."""
    return re.findall(r"[a-zA-Z_:][\w:]*\{[^}]*\}", expression)


def left(look: Callable[[], dict[str, T]]) -> dict[str, T]:
    """What `look` still finds when there ought to be nothing any more."""
    found: dict[str, T] = {}

    def is_nothing() -> bool:
        nonlocal found
        found = look()
        return not found

    with contextlib.suppress(AssertionError):
        settled(is_nothing)
    return found


def test_prometheus_accepts_every_expression(prometheus: Prometheus) -> None:
    assert len(PANELS) > 100
    refused = {where: prometheus.query(expression).error for where, expression in PANELS + RULES}
    assert {where: error for where, error in refused.items() if error} == {}


def test_every_panel_and_recorded_series_shows_numbers(
    site: Monitored, prometheus: Prometheus
) -> None:
    waiting = {each: where for where, each in PANELS + RECORDED if not metrics_in(each) & EMPTY}

    def without_numbers() -> dict[str, str]:
        site.write()
        for expression in [each for each in waiting if prometheus.query(each).values]:
            del waiting[expression]
        return waiting

    assert left(without_numbers) == {}


def test_every_metric_that_a_rule_or_panel_asks_for_has_been_scraped(
    prometheus: Prometheus,
) -> None:
    def unknown() -> dict[str, set[str]]:
        found = prometheus.names() | ABSENT
        asked = {where: metrics_in(expression) for where, expression in PANELS + RULES}
        return {where: names - found for where, names in asked.items() if names - found}

    assert left(unknown) == {}


def test_the_labels_that_alerts_ask_for_are_those_of_the_series(prometheus: Prometheus) -> None:
    asked = {each: where for where, expression in RULES for each in selectors(expression)}
    asked |= dict.fromkeys(selectors(filled(dashboards.ROLLS)), "Rolls")
    for each in [each for each in asked if metrics_in(each) & (ABSENT | NO_DISKS)]:
        del asked[each]
    assert len(asked) > 10

    def without_series() -> dict[str, str]:
        return {each: asked[each] for each in asked if not prometheus.query(each).values}

    assert left(without_series) == {}


def test_what_can_be_chosen_above_the_panels_is_listed(prometheus: Prometheus) -> None:
    queries = [re.fullmatch(r"label_values\((.*), (\w+)\)", filled(each)) for each in chosen_by()]
    asked = {f'count by ({each[2]}) ({each[1]}{{{each[2]}!=""}})' for each in queries if each}
    asked = {each.replace("}{", ", ") for each in asked}
    assert len(asked) == len(CHOSEN)

    def without_any() -> dict[str, str]:
        return {each: "nothing to choose" for each in asked if not prometheus.query(each).values}

    assert left(without_any) == {}


def test_no_rule_fails_to_be_worked_out(prometheus: Prometheus) -> None:
    def faults() -> dict[str, str]:
        groups = prometheus.get("api/v1/rules")["data"]["groups"]
        every = [rule for group in groups for rule in group["rules"]]
        assert len(every) == len(RULES)
        return {each["name"]: each.get("lastError", "") for each in every if each["health"] != "ok"}

    assert left(faults) == {}


def test_the_runbook_of_an_alert_that_fires_is_where_the_alert_says(prometheus: Prometheus) -> None:
    def missing() -> dict[str, str]:
        fired = {
            each["labels"]["alertname"]: each["annotations"]["runbook_url"]
            for each in prometheus.get("api/v1/alerts")["data"]["alerts"]
        }
        fired.setdefault("Watchdog", "")
        return {
            name: url for name, url in fired.items() if not page_of(url).startswith(f"# {name}\n")
        }

    assert left(missing) == {}
