"""A mirror's metrics: of each flow, and of each of its partitions that this process mirrors."""

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
        "kdist_mirror_passed_bytes_total", "Bytes of these batches, compressed as they are."
    )
    rebuilt_batches: int = counter(
        "kdist_mirror_rebuilt_batches_total",
        "Batches that had to be decoded and rebuilt, for example after compaction.",
    )
    doubts: int = counter(
        "kdist_mirror_doubts_total",
        "Times that a partition's position had to be read from the target after a failure.",
    )
    contested_batches: int = counter(
        "kdist_mirror_contested_batches_total",
        "Batches that the target refused as out of sequence, as another mirror had written.",
    )
    buffered_bytes: int = gauge(
        "kdist_mirror_buffered_bytes", "Bytes read that the target has not acknowledged."
    )
    mirrored_topics: int = gauge("kdist_mirror_mirrored_topics", "Topics that the flow mirrors.")
    held_topics: int = gauge(
        "kdist_mirror_held_topics",
        "Topics that its patterns select but that are not mirrored: they came from the target, or"
        " the target refuses them.",
    )
    silent_seconds: float = gauge(
        "kdist_mirror_silent_seconds",
        "Time since both clusters last answered, and the source last let the flow's group read.",
    )


@metrics
class StreamMetrics(Metrics):
    """One partition of the source; the family's labels are `flow`, `topic` and `partition`."""

    lag_records: int = gauge(
        "kdist_mirror_lag_records", "Records of the source that are not in the target yet."
    )
    lag_bytes: float = gauge(
        "kdist_mirror_lag_bytes",
        "Estimated bytes of these records, by the average size of those mirrored so far.",
    )
    lag_seconds: float = gauge(
        "kdist_mirror_lag_seconds", "Age of the oldest record that is not in the target yet."
    )
    is_stopped: int = gauge(
        "kdist_mirror_stopped", "1 if the partition is not mirrored until an operator intervenes."
    )
