"""The metrics of a load's last run, written to a file that the node exporter exposes."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, gauge, metrics


@metrics
class LoadMetrics(Metrics):
    """One job; the family's label is `job_name`."""

    is_failed: int = gauge("kdist_load_last_run_failed", "1 if the last run failed, else 0.")
    ended_s: float = gauge(
        "kdist_load_last_run_timestamp_seconds", "When the last run ended, in Unix time."
    )
    succeeded_s: float = gauge(
        "kdist_load_last_success_timestamp_seconds",
        "When a run last succeeded, in Unix time; 0 for never.",
    )
    duration_s: float = gauge("kdist_load_last_run_seconds", "How long the last run took.")
    expected_every_s: int = gauge(
        "kdist_load_expected_interval_seconds", "How often the job should succeed."
    )


@metrics
class TopicLoadMetrics(Metrics):
    """One topic of a job's last run; the family's labels are `job_name` and `topic`."""

    load: int = gauge("kdist_load_number", "The number of the topic's newest load.")
    rows: int = gauge("kdist_load_last_run_records", "Records that the last run loaded.")
    undecoded: int = gauge(
        "kdist_load_last_run_undecoded_records",
        "Those of them that keep their bytes, as the columns do not represent them completely.",
    )
