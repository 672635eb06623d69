"""Spark gateways: PySpark, separate from kdist's releases, and a timer for each load."""

from __future__ import annotations

import pytest

from tests.deploy.deployed import Member
from tests.deploy.drilling import await_that
from tests.deploy.pipeline import LOADED_S, PYTHON


def jobs(host: Member) -> list[str]:
    """The names of the loads that the host must have."""
    return [job["name"] for job in host["kdist_spark_jobs"]]


def test_spark_is_the_one_that_is_wanted_and_finds_kdist(spark_host: Member) -> None:
    asked = "import pyspark, pyspark_kdist; print(pyspark.__version__)"
    assert spark_host.says(f'{PYTHON} -c "{asked}"') == spark_host["kdist_spark_version"]


def test_each_job_has_a_timer_that_runs_and_starts_at_boot(spark_host: Member) -> None:
    assert jobs(spark_host)
    for job in jobs(spark_host):
        timer = spark_host.shell.service(f"kdist-load@{job}.timer")
        assert timer.is_running, job
        assert timer.is_enabled, job


def test_a_load_runs_as_kdist_and_may_write_its_output_alone(spark_host: Member) -> None:
    for job in jobs(spark_host):
        unit = f"kdist-load@{job}.service"
        shown = spark_host.unit(unit, "ProtectSystem", "NoNewPrivileges", "User", "Type")
        expected = {"ProtectSystem": "strict", "NoNewPrivileges": "yes", "User": "kdist"}
        assert shown == expected | {"Type": "oneshot"}


@pytest.mark.timeout(LOADED_S + 60)
def test_no_load_has_failed_or_is_under_way(spark_host: Member) -> None:
    """A load that began during deployment fails for lack of topics; the timer's next succeeds."""
    units = [f"kdist-load@{job}.service" for job in jobs(spark_host)]

    def have_ended_well() -> bool:
        states = [spark_host.unit(unit, "ActiveState")["ActiveState"] for unit in units]
        return set(states) == {"inactive"}

    await_that(have_ended_well, "loads that work", LOADED_S)


def test_a_jobs_settings_are_for_kdist_alone_and_accepted(spark_host: Member) -> None:
    for job in jobs(spark_host):
        path = f"/etc/kdist/load/{job}.properties"
        file = spark_host.shell.file(path)
        assert (file.user, file.group, file.mode) == ("root", "kdist", 0o640)
        assert spark_host.works(f"{PYTHON} -m kdist.cli load check --config {path}")


def test_the_exporter_passes_each_jobs_figures_on(spark_host: Member) -> None:
    port = spark_host["kdist_ports"]["node_exporter"]
    said = spark_host.says(f"curl -sS http://{spark_host['kdist_address']}:{port}/metrics")
    for job in jobs(spark_host):
        assert f'kdist_load_expected_interval_seconds{{job_name="{job}"}}' in said
