"""Metrics of client quotas: how much clients use, and for how long they are held back."""

from __future__ import annotations

from kdist.metrics.declare import Metrics, counter, gauge, metrics


@metrics
class QuotaMetrics(Metrics):
    """One quota of one client. The labels are `client` and `quota` (`produce`, `fetch`, `request`).

    `client` is `<default>` for all without a quota of their own, and `<others>` for those with one
    beyond the first 200.
    """

    PREFIX = "kdist_quota_"

    limit: float = gauge(
        "What the quota allows a client each second: bytes, or seconds of the broker's thread; 0 "
        "for <others>."
    )
    used: float = counter("What was used of it: bytes, or seconds of the broker's thread.")
    throttled: int = counter(
        "Requests after which the client was held back.",
        name="kdist_quota_throttled_requests_total",
    )
    throttled_seconds: float = counter(
        "For how long clients were told to pause, over all their connections."
    )
