"""What a benchmark reports: latencies as percentiles, as a mean hides the slow ones."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def summarise(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles (nearest rank) and maximum, in ms; empty for no latencies."""
    if not latencies_ms:
        return {}
    ranked = sorted(latencies_ms)
    last = len(ranked) - 1
    found = {"mean": sum(ranked) / len(ranked)}
    for name, share in _SHOWN.items():
        found[name] = ranked[min(last, int(share * len(ranked)))]
    found["max"] = ranked[-1]
    return {name: round(value, 3) for name, value in found.items()}


def show_summary(summary: dict[str, float]) -> str:
    """`mean 1.2 ms, p50 1.1 ms, ...`."""
    return ", ".join(f"{name} {value:,.2f} ms" for name, value in summary.items())
