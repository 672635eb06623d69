"""The table that a run prints (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tests.chaos.availability import Outage, quantile
from tests.chaos.pace import Paces
from tests.chaos.result import Result

SHOWN_OF_A_KIND = 10


def lines(result: Result, limits_s: Mapping[str, float | None]) -> Iterator[str]:
    """Faults and what followed, records and latencies, anomalies.

    `limits_s`: for how long a partition may be unavailable after each kind, where that is promised.
    """
    yield ""
    yield (
        f"{'fault':24}{'count':>6}   unavailable, s: {'led by the target':^25}"
        f"   {'led by others':^25}   wanted"
    )
    yield f"{'':30}{'':19}{'median':>9}{'p90':>8}{'max':>8}   {'median':>9}{'p90':>8}{'max':>8}"
    counts = Counter(fault.kind for fault in result.faults)
    by_kind: dict[str, list[Outage]] = defaultdict(list)
    for outage in result.outages:
        by_kind[outage.kind].append(outage)
    for kind in sorted(counts):
        led = sorted(each.seconds for each in by_kind[kind] if each.was_led)
        others = sorted(each.seconds for each in by_kind[kind] if not each.was_led)
        limit_s = limits_s.get(kind)
        wanted = "" if limit_s is None else f"{limit_s:.1f}"
        yield f"{kind:24}{counts[kind]:>6}{'':19}{_three(led)}   {_three(others)}   {wanted:>6}"
    yield ""
    yield "records: " + ", ".join(f"{n} {outcome}" for outcome, n in result.outcomes.items())
    if times := result.latencies:
        shares = (("median", 0.5), ("p99", 0.99), ("p99.9", 0.999))
        texts = [f"{name} {quantile(times, share) * 1000:.0f} ms" for name, share in shares]
        yield f"acknowledged after: {', '.join(texts)}, max {times[-1]:.2f} s"
    if result.paces is not None:
        yield "moves: " + ", ".join(f"{n} {what}" for what, n in sorted(result.moved.items()))
        yield from _paces(result.paces)
    if result.renumbered:
        yield f"sent again in a new epoch by their client, and there twice: {result.renumbered}"
    yield from _anomalies(result)


def _paces(paces: Paces) -> Iterator[str]:
    for what, pace in (("partitions move", paces.moving), ("none moves", paces.still)):
        yield (
            f"while nothing is broken and {what}: median {pace.median * 1000:.0f} ms,"
            f" p99 {pace.p99 * 1000:.0f} ms ({pace.count} records)"
        )


def _three(seconds: list[float]) -> str:
    if not seconds:
        return f"{'-':>9}{'-':>8}{'-':>8}"
    return f"{quantile(seconds, 0.5):>9.2f}{quantile(seconds, 0.9):>8.2f}{seconds[-1]:>8.2f}"


def _anomalies(result: Result) -> Iterator[str]:
    kinds = Counter(each.kind for each in result.anomalies)
    found = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    yield f"anomalies: {found or 'none'}"
    for kind in kinds:
        texts = [each.text for each in result.anomalies if each.kind == kind]
        yield from (f"  {kind}: {text}" for text in texts[:SHOWN_OF_A_KIND])
        if len(texts) > SHOWN_OF_A_KIND:
            yield f"  {kind}: {len(texts) - SHOWN_OF_A_KIND} more"
