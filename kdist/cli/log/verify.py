"""`kdist log verify`: checks a log, and shows the findings as a table and an exit status."""

from __future__ import annotations

import click

from kdist.cli.shared.files import readonly_files
from kdist.cli.shared.options import json_option, path_argument, print_json
from kdist.cli.shared.progress import byte_progress
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.inspection.place import locate
from kdist.inspection.report import Finding, Report, Severity
from kdist.inspection.verify import total_bytes, verify

_COLORS = {Severity.DAMAGE: "red", Severity.STALE: "yellow", Severity.NOTE: None}


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
    with byte_progress(lambda: total_bytes(files, place)) as advance:
        report = verify(files, place, is_deep=deep, progress=advance)
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)
    return 1 if report.is_damaged else 0


def _print(report: Report) -> None:
    ordered = sorted(report.findings, key=lambda finding: list(Severity).index(finding.severity))
    print_rows(_findings(report), ordered, color=lambda finding: _COLORS[finding.severity])
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


def _findings(report: Report) -> tuple[Field[Finding], ...]:
    top = f"{report.path}/"
    return (
        Field("SEVERITY", lambda finding: finding.severity, "severity"),
        Field("FILE", lambda finding: finding.path, "file", lambda path: path.removeprefix(top)),
        Field("POSITION", lambda finding: finding.position, "position", _position, is_number=True),
        Field("REASON", lambda finding: finding.reason, "reason"),
    )


def _position(position: int | None) -> str:
    return "" if position is None else str(position)


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
        "findings": [json_row(_findings(report), finding) for finding in report.findings],
    }
