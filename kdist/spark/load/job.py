"""One run of a job: loads and commits its topics one after the other, each by itself.

If a topic fails, whatever it fails with, the others are loaded all the same, but the run counts as
failed.
Spark is started only when the first topic turns out to have new records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from kdist.config.load_job import LoadJob, TopicLoadSettings
from kdist.errors import KdistError, UserError
from kdist.runtime.clock import Clock
from kdist.runtime.files import Files
from kdist.spark.load.columns_named import require_compatible
from kdist.spark.load.commit import Commit, OnStep, go_on
from kdist.spark.load.counts import Tally, add_up, count_records, count_rows, rows_before, tallies
from kdist.spark.load.layout import FILE_SUFFIX, Run
from kdist.spark.load.ledger import Ledger
from kdist.spark.load.manifest import DataFile, Manifest, RowsDisagree
from kdist.spark.load.plan import (
    LoadPlan,
    Topic,
    hanging,
    look_at_topic,
    plan_load,
    plan_replay,
    require_replayed,
    require_same,
)
from kdist.spark.load.progress import Progress, Watch, told_at_intervals
from kdist.spark.load.report import RunReport, TopicReport, require_directory, write_report
from kdist.spark.load.spark_session import (
    ended_java,
    require_java,
    spark_session,
    told_in_a_sentence,
)
from kdist.spark.load.table import Shape, columns_of, records, rows, warn_of_outside, write
from kdist.spark.ranges import Range, cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_DAYS_MANY = 1_000


class LoadContext(NamedTuple):
    """The outside world of a run, its process id, release and host, and a hook for its steps.

    `on_progress` is called at intervals while a topic is loaded, in a thread of its own.
    """

    files: Files
    clock: Clock
    environment: MutableMapping[str, str]
    process: int
    release: str
    on_step: OnStep = go_on
    host: str = ""
    on_progress: Callable[[Progress], object] | None = None


class RunOptions(NamedTuple):
    """The options of one run, besides its job; no topics stands for all of the job's."""

    topics: tuple[str, ...] = ()
    replay_from: Mapping[str, int] = {}
    accept_loss: bool = False


class Unforeseen(KdistError):
    """Something that no load should meet: a bug of kdist's, or an exception of a library's."""


class Loaded(NamedTuple):
    """The outcome for one topic: its new load, None if there was nothing new, or an error.

    A load with an error is committed, but does not have what it should. `unread` is how many
    offsets wait for open transactions: the next load has them.
    """

    topic: str
    manifest: Manifest | None = None
    error: KdistError | OSError | None = None
    began_ms: int = 0
    unread: int = 0


class LoadRun:
    """One run. A `session` that is passed in is used, and not stopped in the end."""

    def __init__(
        self, loads: LoadJob, context: LoadContext, session: SparkSession | None = None
    ) -> None:
        self._loads = loads
        self._job = loads.job
        self._context = context
        self._session = session
        self._resources = ExitStack()

    def run(self, options: RunOptions, tell: Callable[[Loaded], object]) -> list[Loaded]:
        """Load every topic, and call `tell` with each outcome; returns all of them.

        `UserError`, before anything is loaded, if the metrics file could not be written. The
        metrics are also written after a bug or an interrupt.
        """
        require_directory(self._context.files, self._job)
        started_ms = self._context.clock.now_ms()
        outcomes: list[Loaded] = []
        is_over = False
        try:
            with self._resources:
                for topic in options.topics or self._job.topics:
                    outcomes.append(self._attempt(topic, options))
                    tell(outcomes[-1])
            is_over = True
        finally:
            self._report(started_ms, outcomes, is_over=is_over)
        return outcomes

    def _attempt(self, topic: str, options: RunOptions) -> Loaded:
        began_ms = self._context.clock.now_ms()
        try:
            return self._load(topic, options)._replace(began_ms=began_ms)
        except (KdistError, OSError) as error:
            return Loaded(topic, error=error, began_ms=began_ms)
        except Exception as bug:  # it costs this topic, whose load is abandoned, and no other
            logger.error("%s could not be loaded", topic, exc_info=bug)
            why = Unforeseen(f"{topic} could not be loaded: {type(bug).__name__}: {bug}")
            return Loaded(topic, error=why, began_ms=began_ms)

    def _report(self, started_ms: int, outcomes: Sequence[Loaded], *, is_over: bool) -> None:
        is_failed = not is_over or any(each.error for each in outcomes)
        topics = tuple(
            TopicReport(each.topic, each.manifest.load, each.manifest.rows, each.manifest.undecoded)
            for each in outcomes
            if each.manifest is not None
        )
        run = RunReport(
            started_ms,
            self._context.clock.now_ms(),
            is_failed,
            topics,
            {each.topic: each.began_ms for each in outcomes if not each.error},
        )
        write_report(self._context.files, self._job, run)

    # One topic

    def _load(self, name: str, options: RunOptions) -> Loaded:
        context = self._context
        self._look_at(name, None)  # raises before a directory is made for a topic that is not there
        ledger = Ledger(context.files, self._job.output, name)
        lock = ledger.lock()
        try:
            run = Run(context.clock.now_ms(), context.process, context.host)
            ledger.sweep(run)
            # Again: another run may have loaded more until it released the lock.
            plan = _planned(ledger, self._look_at(name, ledger.last()), options)
            unread = sum(each.size for each in plan.topic.unread.values())
            found = Loaded(name, error=hanging(plan, run.started_ms), unread=unread)
            if plan.is_empty:
                return found
            context.on_step("planned")
            return found._replace(manifest=self._carry_out(ledger, plan, run))
        finally:
            lock.release()

    def _look_at(self, name: str, loaded: Manifest | None) -> Topic:
        """The topic, and where the leader epochs end in which its last load ended."""
        return look_at_topic(self._job, name, loaded.epochs if loaded is not None else {})

    def _carry_out(self, ledger: Ledger, plan: LoadPlan, run: Run) -> Manifest:
        context = self._context
        self._warn_of_days(plan)
        commit = Commit(context.files, ledger.directory, plan.number, run, context.on_step)
        watch = Watch(plan.topic.name, self._tasks(plan), commit, context.files, context.clock)
        with told_at_intervals(watch.look, context.on_progress):
            return self._made(ledger, plan, run, commit, watch)

    def _made(
        self, ledger: Ledger, plan: LoadPlan, run: Run, commit: Commit, watch: Watch
    ) -> Manifest:
        context = self._context
        spark = self._spark()
        commit.begin()
        try:
            with told_in_a_sentence(f"{plan.topic.name} could not be loaded"):
                shape = self._stage(spark, plan, commit, watch)
            watch.doing = "committing"
            context.on_step("staged")
            manifest = self._described(plan, shape, commit, run)
            _maybe_warn_of_many_days(manifest)
            require_same(self._look_at(plan.topic.name, manifest), manifest)
            manifest = self._counted(manifest, plan, commit)
            if plan.replayed:
                require_replayed(plan, self._read_again(plan, manifest, commit))
            context.on_step("counted")
            commit.publish(manifest, plan.supersedes)
        except (Exception, KeyboardInterrupt):
            commit.abandon()
            ledger.put_back()
            raise
        ledger.sweep(run)
        context.on_step("swept")
        return manifest

    def _spark(self) -> SparkSession:
        if self._session is not None and ended_java():
            self._resources.close()
            self._session = None
        if self._session is None:
            job, context = self._job, self._context
            require_java(context.files, context.environment)
            self._session = self._resources.enter_context(
                spark_session(
                    f"kdist load {job.name}",
                    job.spark_master,
                    job.event_time_zone,
                    self._loads.spark,
                    context.environment,
                )
            )
        return self._session

    def _stage(self, spark: SparkSession, plan: LoadPlan, commit: Commit, watch: Watch) -> Shape:
        from pyspark.sql import Observation

        watch.doing = "inferring the columns"
        found = records(spark, self._job, plan)
        shape = self._shape(plan, lambda: columns_of(spark, self._topic(plan), found))
        watch.doing = "reading and writing"
        outside = Observation()
        write(rows(spark, self._job, plan, shape, commit.counts, outside), commit.staging)
        warn_of_outside(plan.topic.name, outside)
        return shape

    def _tasks(self, plan: LoadPlan) -> list[Range]:
        """The ranges that Spark's tasks read, as the data source cuts them."""
        return cut(plan.ranges, records_max=self._job.task_records)

    def _topic(self, plan: LoadPlan) -> TopicLoadSettings:
        return self._loads.topics[plan.topic.name]

    def _shape(self, plan: LoadPlan, found: Callable[[], Shape]) -> Shape:
        """The columns of the load before, unless the job gives a schema."""
        topic, before = self._topic(plan), plan.before
        if before is None or topic.format == "bytes":
            return found()
        if before.columns and topic.schema is None:
            return Shape(before.columns, topic)
        shape = found()
        require_compatible(plan.topic.name, shape.columns or (), before.columns or (), before.load)
        return shape

    def _described(self, plan: LoadPlan, shape: Shape, commit: Commit, run: Run) -> Manifest:
        context = self._context
        files = [
            DataFile(path, count_rows(context.files, f"{commit.staging}/{path}"), size_bytes)
            for path, size_bytes in commit.staged()
            if path.endswith(FILE_SUFFIX)
        ]
        return Manifest(
            load=plan.number,
            topic=plan.topic.name,
            topic_id=str(plan.topic.id),
            job=self._job.name,
            release=context.release,
            started_ms=run.started_ms,
            written_ms=context.clock.now_ms(),
            offsets=plan.offsets,
            lost=plan.lost,
            undecoded=0,  # `_counted` knows it
            columns=shape.columns,
            files=tuple(files),
            epochs=plan.topic.epochs,
            days=self._days(plan),
        )

    def _days(self, plan: LoadPlan) -> dict[str, str]:
        """The settings that say which day a record is of, by their names in a job."""
        topic = self._topic(plan)
        return {
            "event.time.field": topic.event_time_field or "",
            "event.time.format": topic.event_time_format,
            "event.time.zone": self._job.event_time_zone,
            "event.time.before.max.days": _said(topic.event_time_before_max_days),
            "event.time.after.max.days": _said(topic.event_time_after_max_days),
        }

    def _warn_of_days(self, plan: LoadPlan) -> None:
        """Warn if the load's days are not those of the load before."""
        before, now = plan.before.days if plan.before is not None else {}, self._days(plan)
        for name in before:
            if before[name] != now.get(name):
                logger.warning(
                    "%s: %s is %s now, and was %s: a day of this load is another than in the"
                    " loads before, unless these are replayed from the first on",
                    plan.topic.name,
                    name,
                    now.get(name) or "not set",
                    before[name] or "not set",
                )

    def _read_again(self, plan: LoadPlan, manifest: Manifest, commit: Commit) -> int:
        """How many rows have offsets of the loads that are replaced."""
        ends = {partition: end for partition, (_, end) in plan.replayed[-1].offsets.items()}
        paths = (f"{commit.staging}/{file.path}" for file in manifest.files)
        return sum(rows_before(self._context.files, path, ends) for path in paths)

    def _counted(self, manifest: Manifest, plan: LoadPlan, commit: Commit) -> Manifest:
        """The manifest with how many records were read; `RowsDisagree` if there are other rows."""
        files, name = self._context.files, plan.topic.name
        counts = count_records(files, commit.counts, self._tasks(plan))
        paths = (f"{commit.staging}/{each.path}" for each in manifest.files)
        written = add_up(found for path in paths for found in tallies(files, path))
        for partition in sorted(written.keys() | counts.tallies.keys()):
            _require_read(
                f"{name}-{partition}",
                written.get(partition, Tally()),
                counts.tallies.get(partition, Tally()),
            )
        undecoded = counts.undecoded
        return manifest._replace(
            records={partition: each.records for partition, each in counts.tallies.items()},
            digests={partition: each.digits for partition, each in counts.tallies.items()},
            undecoded=undecoded.total(),
            reasons=undecoded,
        )


def _maybe_warn_of_many_days(manifest: Manifest) -> None:
    """Warn of as many days as few loads have: a producer with wrong times makes a file for each."""
    if (days := len({file.path.partition("/")[0] for file in manifest.files})) > _DAYS_MANY:
        logger.warning(
            "%s: load %d has %s days, each a directory; if a producer's times are wrong,"
            " event.time.before.max.days and event.time.after.max.days keep them out",
            manifest.topic,
            manifest.load,
            f"{days:,}",
        )


def _said(days: int | None) -> str:
    return "" if days is None else str(days)


def _require_read(name: str, written: Tally, read: Tally) -> None:
    """`RowsDisagree` if a partition's rows are not the records that were read of it."""
    if written.records != read.records:
        raise RowsDisagree(
            f"{name}: Spark wrote {written.records} rows of {read.records} records that it read;"
            " nothing is committed"
        )
    if written != read:
        raise RowsDisagree(
            f"{name}: Spark wrote as many rows as it read records, but not the same ones: some are"
            " there twice, others not at all; nothing is committed"
        )


def _planned(ledger: Ledger, topic: Topic, options: RunOptions) -> LoadPlan:
    """The plan of the next load, or of a replay."""
    start = options.replay_from.get(topic.name)
    if start is None:
        return plan_load(topic, ledger.last(), accept_loss=options.accept_loss)
    numbers = ledger.numbers()
    if start not in numbers:
        there = f"loads {numbers[0]} to {numbers[-1]}" if numbers else "no loads"
        raise UserError(f"{topic.name} has no load {start} to replay: it has {there}")
    before = ledger.manifest(start - 1) if start - 1 in numbers else None
    return plan_replay(topic, before, [ledger.manifest(each) for each in numbers if each >= start])
