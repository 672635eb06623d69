"""Which release and configuration a broker runs, as labels on a metric that is always 1."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, gauge, metrics


@metrics
class BuildMetrics(Metrics):
    """The family's labels are `version` and `fingerprint`."""

    info: int = gauge(
        "kdist_build_info",
        "Always 1; its labels are the release's version, and the fingerprint of release, "
        "configuration and unit that the broker was started with.",
    )
