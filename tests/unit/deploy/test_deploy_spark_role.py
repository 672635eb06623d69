"""What kdist_spark writes, rendered by Ansible: a job's settings, its unit and its timer."""

from __future__ import annotations

import configparser
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plugins import PLACES, ROOT

from kdist.config.load_job import load_job

ROLE = ROOT / "roles/kdist_spark"
NIGHTLY = {
    "name": "nightly",
    "on_calendar": "*-*-* 02:00",
    "settings": {"topics": ["flights", "ops.host"], "topic.flights.event.time.field": "scheduled"},
}


def rendered(template: str, **given: object) -> str:
    """A template of the role, as a host has it."""
    site: dict[str, Any] = {
        **PLACES,
        "inventory_hostname": "s1",
        "kdist_bootstrap_servers": "198.51.100.13:9092,198.51.100.13:9093",
        "kdist_spark_job": NIGHTLY,
        **yaml.safe_load((ROLE / "defaults/main.yml").read_text()),
        "kdist_spark_jobs": [NIGHTLY],
        **given,
    }
    text = (ROLE / "templates" / template).read_text()
    templar = Templar(loader=DataLoader(), variables=site)
    return str(templar.template(trust_as_template(text)))


def unit(template: str, section: str, **given: object) -> dict[str, list[str]]:
    """A section of a unit; a name may come more than once."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(rendered(template, **given))
    return {name: text.split() for name, text in parser[section].items()}


def test_a_jobs_file_is_one_that_the_load_takes() -> None:
    found = load_job(rendered("load.properties.j2"), "nightly.properties")
    assert (found.job.name, found.job.topics) == ("nightly", ("flights", "ops.host"))
    assert found.job.output == "/var/lib/kdist-load/output/nightly"
    assert found.job.metrics_file == "/var/lib/kdist-load/metrics/nightly.prom"
    assert found.topics["flights"].event_time_field == "scheduled"
    assert found.topics["ops.host"].event_time_field is None
    assert found.spark == {"spark.driver.memory": "2g"}


def test_settings_of_a_job_override_those_of_the_site() -> None:
    job = {**NIGHTLY, "settings": {"topics": "a", "output": "/data/a", "spark.driver.memory": "1g"}}
    found = load_job(rendered("load.properties.j2", kdist_spark_job=job), "x")
    assert (found.job.output, found.spark) == ("/data/a", {"spark.driver.memory": "1g"})


def test_a_load_may_write_to_its_output_and_nowhere_else() -> None:
    found = unit("kdist-load@.service.j2", "Service")
    assert found["ProtectSystem"] == ["strict"]
    assert found["ReadWritePaths"] == ["/var/lib/kdist-load", "/var/lib/kdist-load/output"]
    job = {**NIGHTLY, "settings": {"topics": "a", "output": "/data/a"}}
    text = rendered("kdist-load@.service.j2", kdist_spark_jobs=[job])
    assert "ReadWritePaths=/data/a\n" in text
    assert found["ExecStart"][-3:] == ["load", "--config", "/etc/kdist/load/%i.properties"]


def test_a_load_outlives_its_java_being_killed_for_memory() -> None:
    assert unit("kdist-load@.service.j2", "Service")["OOMPolicy"] == ["continue"]


@pytest.mark.parametrize(("names", "is_right"), [("ab", True), ("aa", False), ("", True)])
def test_two_jobs_of_one_name_are_refused(names: str, is_right: bool) -> None:
    tasks = yaml.safe_load((ROLE / "tasks/preflight.yml").read_text())
    claims = [
        task["ansible.builtin.assert"]["that"] for task in tasks if "Refuse two" in task["name"]
    ]
    jobs = [{"name": name} for name in names]
    templar = Templar(loader=DataLoader(), variables={"kdist_spark_jobs": jobs})
    found = [templar.template(trust_as_template(f"{{{{ {claim} }}}}")) for claim in claims]
    assert found == [is_right]


def test_a_job_is_retired_even_if_an_interrupted_run_has_removed_its_timer() -> None:
    tasks = yaml.safe_load((ROLE / "tasks/retire.yml").read_text())
    stop, end, *removals = [task for task in tasks if "loop" in task]
    seen = {"kdist_spark_retired": ["begun", "whole"], "kdist_spark_timers": ["nightly", "whole"]}
    templar = Templar(loader=DataLoader(), variables=seen)
    for unit_goes in (stop, end):
        assert templar.template(trust_as_template(unit_goes["loop"])) == ["whole"]
    for removal in removals:
        assert templar.template(trust_as_template(removal["loop"])) == ["begun", "whole"]


def test_a_retired_jobs_run_is_ended_before_its_metrics_are_removed() -> None:
    """It would write them again, and the alert that it is late would fire for ever."""
    steps = [
        str(task.get("ansible.builtin.systemd_service", task.get("ansible.builtin.file")))
        for task in yaml.safe_load((ROLE / "tasks/retire.yml").read_text())
    ]
    timer, run, metrics = (
        next(number for number, step in enumerate(steps) if what in step)
        for what in ("}}.timer", "}}.service", ".prom")
    )
    assert timer < run < metrics


def test_a_missed_timer_runs_later() -> None:
    found = unit("kdist-load.timer.j2", "Timer")
    assert (found["OnCalendar"], found["Persistent"]) == (["*-*-*", "02:00"], ["true"])


@pytest.mark.parametrize(
    ("playbook", "group", "page"),
    [("spark-load", "spark", "retire"), ("mirror", "mirror", "leave")],
)
def test_a_host_that_has_left_the_group_runs_no_job(playbook: str, group: str, page: str) -> None:
    _, there, elsewhere = yaml.safe_load((ROOT / f"playbooks/{playbook}.yml").read_text())
    assert (there["hosts"], elsewhere["hosts"]) == (group, f"all:!{group}")
    (task,) = elsewhere["tasks"]
    assert task["ansible.builtin.include_role"]["tasks_from"] == page
