"""The page at the end of the demo: what happened, and what to type next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console

from lab.demo.play import Outcome, Play
from lab.demo.settings import FLIGHTS, HOSTS

_DAYS_SHOWN = 3
_KDIST = ".venv/bin/kdist"


def differing_days(sent: Counter[str], loaded: Counter[str]) -> list[str]:
    """Days that do not have as many rows as flights were sent."""
    return sorted(day for day in sent | loaded if sent[day] != loaded[day])


def print_page(console: Console, play: Play, outcome: Outcome, *, is_kept: bool) -> None:
    """Print the page for this run of the demo."""
    for line in (*_figures(outcome), *_days(outcome), *_places(play), *_next(play, is_kept)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _figures(outcome: Outcome) -> Iterator[str]:
    count = outcome.sent.total()
    megabytes = outcome.sent_bytes / 1e6
    yield ""
    rows = (
        (
            "produced",
            f"{count:,} flights, {megabytes:.0f} MB of JSON, in {outcome.produced_s:.1f} s:",
        ),
        (
            "",
            f"{count / outcome.produced_s:,.0f} records/s, while a broker was killed with SIGKILL",
        ),
        ("mirrored", f"all of them {outcome.mirrored_s:.1f} s after the last was produced;"),
        ("", f"the lag then was {outcome.lag_records} records"),
        (
            "loaded",
            f"{outcome.loaded.total():,} flights, {outcome.host_records} records of this host,",
        ),
        ("", f"in {outcome.load_s:.1f} s"),
    )
    for title, text in rows:
        yield f"  {title:<9} {text}"
    yield ""


def _days(outcome: Outcome) -> Iterator[str]:
    yield "  DAY         PRODUCED   LOADED"
    days = sorted(outcome.sent)
    shown = (
        days if len(days) <= 2 * _DAYS_SHOWN else [*days[:_DAYS_SHOWN], "", *days[-_DAYS_SHOWN:]]
    )
    for day in shown:
        yield f"  {day}  {outcome.sent[day]:8,} {outcome.loaded[day]:8,}" if day else "  ..."
    total = f"{len(days)} days"
    yield f"  {total:<10}  {outcome.sent.total():8,} {outcome.loaded.total():8,}"
    wrong = differing_days(outcome.sent, outcome.loaded)
    yield (
        f"  Different: {', '.join(wrong)}" if wrong else "  Every day has as many rows as flights."
    )
    yield ""


def _places(play: Play) -> Iterator[str]:
    yield f"  The files are in {play.output}, topic={FLIGHTS} and topic={HOSTS}."


def _next(play: Play, is_kept: bool) -> Iterator[str]:
    yield ""
    yield "  What to type next:"
    if is_kept:
        broker = play.datacenters[1].broker
        yield f"    {_KDIST} consume {FLIGHTS} --broker {broker} --from-beginning --max 3"
        yield f"    {_KDIST} mirror status --config {play.mirror_file}"
    yield f"    {_KDIST} load history --config {play.load_file}"
    yield f"    {_KDIST} log dump {play.datacenters[1].process.log.parents[1] / 'dc2' / 'd01'}"
    if not is_kept:
        yield "    make demo KEEP=1    the same, and the datacenters stay until Ctrl-C"
    yield "    make lab-test       the same on hosts, by Ansible, with faults"
