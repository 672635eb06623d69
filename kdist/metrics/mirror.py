"""What a mirror counts: of each flow, and of each partition that this process has of it."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, counter, gauge, metrics


@metrics
class FlowMetrics(Metrics):
    """One flow; the family's label is `flow`."""

    passed_records: int = counter(
        "kdist_mirror_passed_records_total", "Records that the target has acknowledged."
    )
    passed_batches: int = counter(
        "kdist_mirror_passed_batches_total", "Batches that the target has acknowledged."
    )
    passed_bytes: int = counter(
        "kdist_mirror_passed_bytes_total", "Bytes of them, as they are: compressed."
    )
    rebuilt_batches: int = counter(
        "kdist_mirror_rebuilt_batches_total",
        "Batches that had to be decoded and built anew, as after compaction.",
    )
    doubts: int = counter(
        "kdist_mirror_doubts_total",
        "Times a partition had to ask the target where it stands, after a failure.",
    )
    contested_batches: int = counter(
        "kdist_mirror_contested_batches_total",
        "Batches that the target refused as not the next: another mirror was there.",
    )
    buffered_bytes: int = gauge(
        "kdist_mirror_buffered_bytes", "Bytes read that the target has not acknowledged."
    )
    mirrored_topics: int = gauge("kdist_mirror_mirrored_topics", "Topics that the flow mirrors.")
    held_topics: int = gauge(
        "kdist_mirror_held_topics",
        "Topics that its patterns want and that are not mirrored: they came from its target, or it"
        " refuses to have them.",
    )
    silent_seconds: float = gauge(
        "kdist_mirror_silent_seconds",
        "How long ago both clusters last answered, and the source let the flow's group read.",
    )


@metrics
class StreamMetrics(Metrics):
    """One partition of the source; the family's labels are `flow`, `topic` and `partition`."""

    lag_records: int = gauge(
        "kdist_mirror_lag_records", "Records of the source that are not in the target yet."
    )
    lag_bytes: float = gauge(
        "kdist_mirror_lag_bytes",
        "Bytes that these take, if they are as large as those mirrored so far were.",
    )
    lag_seconds: float = gauge(
        "kdist_mirror_lag_seconds", "Age of the oldest record that is not in the target yet."
    )
    is_stopped: int = gauge(
        "kdist_mirror_stopped",
        "1 if the partition's mirror has stopped, until somebody sees to it.",
    )
