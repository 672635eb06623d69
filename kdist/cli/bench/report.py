"""What a benchmark reports: rates, and latencies as percentiles, as a mean hides the slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdist.cli.shared.options import say
from kdist.cli.shared.show import show_count, show_size

_SHOWN = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def report_rate(
    records: int, size_bytes: int, seconds: float, as_json: bool, size: str = "", **more: Any
) -> None:
    """Print how many records took how long; JSON has `more`. `size` is of what, if not of all."""
    rate = records / seconds if seconds else 0.0
    size_rate = round(size_bytes / seconds) if seconds else 0
    what = f"{show_count(records, 'record')} {size or f'({show_size(size_bytes)})'}"
    say(
        f"{what} in {seconds:.2f} s: {rate:,.0f} records/s, {show_size(size_rate)}/s",
        as_json,
        records=records,
        bytes=size_bytes,
        seconds=round(seconds, 3),
        records_per_second=round(rate),
        bytes_per_second=size_rate,
        **more,
    )


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
