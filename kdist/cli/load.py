"""`kdist load`: loads topics into Parquet files, each record once; lists, checks, replays loads."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kdist.cli.release import release
from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.files import read_settings_file, readonly_files
from kdist.cli.shared.options import config_option, json_option, print_json
from kdist.cli.shared.show import show_count, show_error, show_size, show_time
from kdist.cli.shared.table import Field, print_rows
from kdist.config.load_job import LoadJob, load_job
from kdist.errors import UserError
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk

if TYPE_CHECKING:
    from kdist.config.load_job import Step
    from kdist.spark.load.job import Loaded, RunOptions
    from kdist.spark.load.manifest import Manifest
    from kdist.spark.load.progress import Progress


_CONFIG = config_option("job")
_WRONG = click.style("wrong  ", fg="red")
_REASONS_SHOWN = 3  # a manifest has all of them
topic_option = click.option(
    "--topic", "topics", metavar="NAME", multiple=True, help="Only this topic; may be repeated."
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@config_option("job", required=False)
@topic_option
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Go on after records that retention deleted before they were loaded.",
)
@json_option
@click.pass_context
def load(
    ctx: click.Context, path: str | None, topics: tuple[str, ...], accept_loss: bool, as_json: bool
) -> int | None:
    """Load the records written since the last load into Parquet files, each exactly once.

    The files are in OUTPUT/topic=NAME/load=NUMBER/date=DATE. A load appears there whole or not at
    all; after a crash, the next run continues from the last complete one. If a topic fails, the
    others are loaded all the same, and the exit status is 1.

    \b
    Examples:
      kdist load --config nightly.properties
      kdist load history --config nightly.properties
      kdist load replay --config nightly.properties --topic flights --from 12
    """
    if ctx.invoked_subcommand is not None:
        return None
    if path is None:
        raise click.UsageError("Missing option '--config'.")
    with _of_spark("made"):
        from kdist.spark.load.job import RunOptions

    job = _job(path)
    return _run(job, RunOptions(_chosen(job, topics), accept_loss=accept_loss), as_json)


@load.command()
@_CONFIG
@topic_option
@json_option
def history(path: str, topics: tuple[str, ...], as_json: bool) -> None:
    """List the loads: when each was made, with how many records, in how many files."""
    from kdist.spark.load.ledger import Ledger
    from kdist.spark.load.manifest import write_manifest

    job = _job(path)
    ledgers = [Ledger(readonly_files(), job.job.output, each) for each in _chosen(job, topics)]
    found = [ledger.manifest(number) for ledger in ledgers for number in ledger.numbers()]
    if as_json:
        for each in found:
            print_json(_as_json(write_manifest(each)))
    else:
        print_rows(_HISTORY, found, if_none=f"There are no loads in {job.job.output}.")


@load.command()
@_CONFIG
@topic_option
@click.option("--deep", is_flag=True, help="Also read every file and offset.")
@json_option
def verify(path: str, topics: tuple[str, ...], deep: bool, as_json: bool) -> int:
    """Check that every load is complete; exit with 1 if something is wrong.

    Checks each manifest, that each load begins where the one before ends, and each file's size
    and number of rows. Changes nothing.
    """
    with _of_spark("verified"):
        from kdist.spark.load import verify as checks

    job = _job(path)
    is_sound = True
    for topic in _chosen(job, topics):
        each = checks.verify(readonly_files(), job.job.output, topic, is_deep=deep)
        is_sound &= not each.findings
        rows = sum(load.rows for load in each.loads)
        said = f"{show_count(rows, 'record')} in {show_count(len(each.loads), 'load')}"
        if as_json:
            numbers = {"loads": len(each.loads), "records": rows}
            print_json({"topic": each.topic, **numbers, "findings": each.findings})
            continue
        for finding in each.findings:
            click.echo(_WRONG + finding)
        if not each.findings:
            click.echo(click.style("sound  ", fg="green") + f"{each.topic}: {said}")
    return 0 if is_sound else 1


@load.command()
@_CONFIG
@topic_option
@click.option(
    "--from", "number", required=True, type=click.IntRange(min=1), help="The first load to replay."
)
@json_option
def replay(path: str, topics: tuple[str, ...], number: int, as_json: bool) -> int:
    """Load the records of a load and of all loads after it again, and new ones, as one load.

    Readers see the old loads until the new one is complete. If the brokers no longer have all of
    these records, the replay is refused and nothing is changed.
    """
    with _of_spark("made"):
        from kdist.spark.load.job import RunOptions

    job = _job(path)
    chosen = _chosen(job, topics)
    return _run(job, RunOptions(chosen, replay_from=dict.fromkeys(chosen, number)), as_json)


@load.command()
@_CONFIG
@click.option("--online", is_flag=True, help="Also look at the brokers, the output, and Java.")
def check(path: str, online: bool) -> int:
    """Check the job's settings: say that they are good, or everything that is wrong with them.

    With --online, also whether a load would begin now: whether the brokers answer and have the
    topics, and what the next load begins with is still there; whether the output can be written
    to, by a directory that is made and removed there; and whether PySpark and Java are installed.
    """
    job = _job(path)
    topics = show_count(len(job.topics), "topic")
    if not online:
        click.echo(
            f"{path}: {topics}, good as far as the file tells; brokers and output not looked at"
        )
        return 0
    from kdist.spark.load.check import look_at_job
    from kdist.spark.load.layout import Run

    click.echo(f"{path}: {topics}, good as far as the file tells")
    is_good = True
    run = Run(SystemClock().now_ms(), os.getpid(), socket.gethostname())
    for said, is_wrong in look_at_job(job.job, Disk(), os.environ, run):
        is_good &= not is_wrong
        click.echo(_WRONG if is_wrong else click.style("good   ", fg="green"), nl=False)
        click.echo(said)
    return 0 if is_good else 1


@load.command()
@_CONFIG
def register(path: str) -> None:
    """Write first metrics for a job that has not run yet, so that its alert counts from now."""
    from kdist.spark.load.report import register_job

    register_job(Disk(), _job(path).job, SystemClock().now_ms())


def _job(path: str) -> LoadJob:
    return load_job(read_settings_file(path), path)


def _chosen(job: LoadJob, topics: tuple[str, ...]) -> tuple[str, ...]:
    for each in topics:
        if each not in job.job.topics:
            raise UserError(f"the job loads no topic {each}: it loads {', '.join(job.job.topics)}")
    return topics or job.job.topics


@contextmanager
def _of_spark(done: str) -> Iterator[None]:
    """`UserError` if what is imported needs a package that only the extra `spark` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "pyspark"):
            raise
        raise UserError(
            f"loads are {done} with {error.name}, which is missing: pip install '.[spark]' in"
            " kdist's source tree"
        ) from None


def _run(job: LoadJob, options: RunOptions, as_json: bool) -> int:
    from kdist.spark.load.job import LoadContext, LoadRun

    if as_json:
        job.spark.setdefault("spark.ui.showConsoleProgress", "false")
    kill_after = job.job.drill_kill_after

    def reached(step: Step) -> None:
        if step == kill_after:
            signal.raise_signal(signal.SIGKILL)

    context = LoadContext(
        Disk(),
        SystemClock(),
        os.environ,
        os.getpid(),
        release() or "unknown",
        reached,
        socket.gethostname(),
        _show_progress if as_json or not sys.stderr.isatty() else None,
    )
    outcomes = LoadRun(job, context).run(options, lambda each: _tell(each, as_json))
    return 1 if any(each.error for each in outcomes) else 0


def _tell(loaded: Loaded, as_json: bool) -> None:
    from kdist.spark.load.manifest import write_manifest

    found, error, unread = loaded.manifest, loaded.error, loaded.unread
    if as_json and (found or not error):
        said = _as_json(write_manifest(found)) if found else {"topic": loaded.topic}
        print_json({**said, "unread": unread})
    elif found or not error:
        waiting = f"; {unread:,} offsets wait for open transactions" if unread else ""
        click.echo(f"{loaded.topic}: {_summary(found) if found else 'nothing new'}{waiting}")
    sys.stdout.flush()
    if error is not None:
        click.echo(f"kdist: {show_error(error)}", err=True)


def _show_progress(seen: Progress) -> None:
    """One line on standard error, where Spark's progress bar is not."""
    click.echo(
        f"{seen.topic}: load {seen.load} after {seen.elapsed_ms // 1000:,} s: {seen.doing},"
        f" {seen.read:,} of {seen.offsets:,} offsets done, {show_size(seen.written_bytes)} written",
        err=True,
    )


def _summary(made: Manifest) -> str:
    undecoded = f", {made.undecoded:,} of them with their bytes" if made.undecoded else ""
    reasons = sorted(made.reasons.items(), key=lambda each: (-each[1], each[0]))
    if reasons:
        more = ", ..." if len(reasons) > _REASONS_SHOWN else ""
        said = ", ".join(f"{count:,} {why}" for why, count in reasons[:_REASONS_SHOWN])
        undecoded += f" ({said}{more})"
    files = f"{show_count(len(made.files), 'file')} of {show_size(made.size_bytes)}"
    rows = f"{show_count(made.rows, 'record')}{undecoded}"
    return f"load {made.load}: {rows}, in {files}, in {_seconds(made)}"


def _seconds(made: Manifest) -> str:
    return f"{(made.written_ms - made.started_ms) / 1000:.1f} s"


_HISTORY: tuple[Field[Manifest], ...] = (  # JSON has the whole manifest, as it is on the disk
    Field("TOPIC", lambda each: each.topic),
    Field("LOAD", lambda each: each.load, is_number=True),
    Field("COMMITTED", lambda each: show_time(each.written_ms)),
    Field("RECORDS", lambda each: f"{each.rows:,}", is_number=True),
    Field("UNDECODED", lambda each: f"{each.undecoded:,}", is_number=True),
    Field("FILES", lambda each: f"{len(each.files):,}", is_number=True),
    Field("SIZE", lambda each: show_size(each.size_bytes), is_number=True),
    Field("TOOK", _seconds, is_number=True),
)


def _as_json(content: bytes) -> Any:
    import json

    return json.loads(content)
