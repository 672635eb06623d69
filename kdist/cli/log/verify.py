"""`kdist log verify`: checks a log, and shows the findings as a table and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from kdist.cli.shared.options import json_option, path_argument, print_json, readonly_files
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Column, Row, print_table
from kdist.inspection.place import Place, locate
from kdist.inspection.report import Finding, Report, Severity
from kdist.inspection.verify import total_bytes, verify
from kdist.runtime.files import Files

_PROGRESS_STEP_BYTES = 4 << 20  # a step of the bar costs 20 µs
_COLORS = {Severity.DAMAGE: "red", Severity.STALE: "yellow", Severity.NOTE: None}
_COLUMNS = (
    Column("SEVERITY"),
    Column("FILE"),
    Column("POSITION", is_number=True),
    Column("REASON"),
)


@click.command("verify")
@path_argument
@click.option("--deep", is_flag=True, help="Also decompress and decode every record.")
@json_option
def verify_log(path: str, deep: bool, as_json: bool) -> int:
    """Check a log: CRCs, offsets, indexes, snapshots, checkpoints, names.

    \b
    Findings are
      damage   bytes that are missing, or are not those that were written
      stale    something that a broker repairs by itself when it starts
      note     nothing is wrong; good to know
    Exits with 1 if there is damage, else with 0. Changes nothing, and may run beside a broker: a
    batch that is just being appended shows as a torn tail, which is stale.

    \b
    Examples:
      kdist log verify /srv/kdist/d01
      kdist log verify --deep /srv/kdist/d01/clicks-0
      kdist log verify --json clicks-0/00000000000000000400.log
    """
    files = readonly_files()
    place = locate(files, path)
    with _progress_bar(files, place) as progress:
        report = verify(files, place, is_deep=deep, progress=progress)
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)
    return 1 if report.is_damaged else 0


@contextmanager
def _progress_bar(files: Files, place: Place) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of bytes read; it draws a bar on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # takes 50 ms, so only for a bar that is drawn
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total_bytes(files, place))
        waiting = 0

        def advance(size: int) -> None:
            nonlocal waiting
            waiting += size
            if waiting >= _PROGRESS_STEP_BYTES:
                bar.advance(task, waiting)
                waiting = 0

        yield advance


def _print(report: Report) -> None:
    ordered = sorted(report.findings, key=lambda finding: list(Severity).index(finding.severity))
    print_table(_COLUMNS, (_row(report, finding) for finding in ordered))
    if ordered:
        click.echo()
    counts = [
        show_count(report.partitions, "partition"),
        show_count(report.segments, "segment"),
        show_count(report.batches, "batch", "batches"),
        show_count(report.records, "record"),
        show_size(report.bytes),
    ]
    totals = [
        f"{sum(finding.severity is severity for finding in ordered)} {word}"
        for severity, word in zip(Severity, ("damage", "stale", "to note"), strict=True)
    ]
    click.echo(f"{report.path}: {', '.join(counts)}.")
    click.echo(f"{'Damaged' if report.is_damaged else 'Sound'}: {', '.join(totals)}.")


def _row(report: Report, finding: Finding) -> Row:
    path = finding.path.removeprefix(f"{report.path}/")
    position = "" if finding.position is None else str(finding.position)
    cells = (finding.severity, path, position, finding.reason)
    return Row(cells, color=_COLORS[finding.severity])


def _as_json(report: Report) -> dict[str, object]:
    return {
        "path": report.path,
        "kind": report.kind,
        "is_damaged": report.is_damaged,
        "partitions": report.partitions,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.bytes,
        "findings": [
            {
                "severity": finding.severity,
                "file": finding.path,
                "position": finding.position,
                "reason": finding.reason,
            }
            for finding in report.findings
        ],
    }
