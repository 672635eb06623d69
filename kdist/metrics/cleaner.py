"""Metrics of compaction: passes over logs, what they removed, and whether the cleaner keeps up."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, Reading, counter, gauge, histogram, metrics, reading
from kdist.metrics.histogram import Histogram


@metrics
class CleanerMetrics(Metrics):
    """One broker's cleaner."""

    PREFIX = "kdist_cleaner_"

    passes: int = counter("Passes over a log that were completed.")
    abandoned_passes: int = counter(
        "Passes given up: the log was deleted or truncated, the disk was full, or the process died."
    )
    pass_seconds: Histogram = histogram("How long each completed pass over a log took.")
    read_bytes: int = counter("Bytes of logs that the cleaner has read.")
    seen_records: int = counter("Records that the cleaner has looked at.")
    removed_records: int = counter("Records that the cleaner has removed.")
    removed_bytes: int = counter("Bytes by which cleaned segments were smaller than before.")
    deaths: int = counter("How often the cleaner process has ended unasked.")
    is_dead: int = gauge(
        "1 while the cleaner process has died and has not answered since.",
        name="kdist_cleaner_dead",
    )
    due_seconds: Reading = reading(
        "For how long a log has been to be cleaned without a pass over it completed, the longest."
    )
    uncleanable_partitions: int = gauge(
        "Partitions that are not cleaned any more until the broker starts anew."
    )
