"""The metrics of a load's last run, written to a file that the node exporter exposes."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, gauge, metrics


@metrics
class LoadMetrics(Metrics):
    """One job; the family's label is `job_name`."""

    is_failed: int = gauge("1 if the last run failed, else 0.", name="kdist_load_last_run_failed")
    ended_s: float = gauge(
        "When the last run ended, in Unix time.", name="kdist_load_last_run_timestamp_seconds"
    )
    duration_s: float = gauge("How long the last run took.", name="kdist_load_last_run_seconds")
    expected_every_s: int = gauge(
        "How often the job should succeed.", name="kdist_load_expected_interval_seconds"
    )


@metrics
class SuccessfulLoadMetrics(Metrics):
    """One job that has succeeded, as far as is known; the family's label is `job_name`."""

    succeeded_s: float = gauge(
        "When a run over all topics of the job last succeeded, in Unix time.",
        name="kdist_load_last_success_timestamp_seconds",
    )


@metrics
class TopicLoadMetrics(Metrics):
    """One topic of a job's last run; the family's labels are `job_name` and `topic`."""

    load: int = gauge("The number of the topic's newest load.", name="kdist_load_number")
    rows: int = gauge("Records that the last run loaded.", name="kdist_load_last_run_records")
    undecoded: int = gauge(
        "Those of them that keep their bytes, as the columns do not represent them completely.",
        name="kdist_load_last_run_undecoded_records",
    )


@metrics
class LoadedTopicMetrics(Metrics):
    """One topic of a job that has been loaded; the family's labels are `job_name` and `topic`."""

    succeeded_s: float = gauge(
        "When the last successful load of the topic began, in Unix time.",
        name="kdist_load_topic_last_success_timestamp_seconds",
    )
