"""A mirror's metrics: of each flow, and of each of its partitions that this process mirrors."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, counter, gauge, metrics


@metrics
class FlowMetrics(Metrics):
    """One flow; the family's label is `flow`."""

    PREFIX = "kdist_mirror_"

    passed_records: int = counter("Records that the target has acknowledged.")
    passed_batches: int = counter("Batches that the target has acknowledged.")
    passed_bytes: int = counter("Bytes of these batches, compressed as they are.")
    rebuilt_batches: int = counter(
        "Batches that had to be decoded and rebuilt, for example after compaction."
    )
    doubts: int = counter(
        "Times that a partition's position had to be read from the target after a failure."
    )
    contested_batches: int = counter(
        "Batches that the target refused as out of sequence, as another mirror had written."
    )
    buffered_bytes: int = gauge("Bytes read that the target has not acknowledged.")
    mirrored_topics: int = gauge("Topics that the flow mirrors.")
    held_topics: int = gauge(
        "Topics that its patterns select but that are not mirrored: they came from the target, the"
        " target refuses them, or the source has them no more."
    )
    silent_seconds: float = gauge(
        "Time since both clusters last answered, and the source last let the flow's group read."
    )


@metrics
class StreamMetrics(Metrics):
    """One partition of the source; the family's labels are `flow`, `topic` and `partition`."""

    PREFIX = "kdist_mirror_"

    lag_records: int = gauge("Records of the source that are not in the target yet.")
    lag_bytes: float = gauge(
        "Estimated bytes of these records, by the average size of those mirrored so far."
    )
    lag_seconds: float = gauge("Age of the oldest record that is not in the target yet.")
    retention_seconds: float = gauge(
        "For how long the source keeps the topic's records (retention.ms); +Inf if for good, or if"
        " it does not say."
    )
    is_stopped: int = gauge(
        "1 if the partition is not mirrored until an operator intervenes.",
        name="kdist_mirror_stopped",
    )


@metrics
class RefusedMetrics(Metrics):
    """A topic that somebody must act on; the family's labels are `flow`, `topic` and `reason`."""

    PREFIX = "kdist_mirror_"

    is_refused: int = gauge(
        "1 for a topic that is not mirrored: the target refuses it, or the source has it no more.",
        name="kdist_mirror_refused",
    )
