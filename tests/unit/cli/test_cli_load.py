"""`kdist load` on the command line, as far as it goes without Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kdist.config.load_job import LoadJob
from kdist.spark.load.job import LoadContext, Loaded, LoadRun, RunOptions
from kdist.spark.load.progress import Progress
from tests.unit.cli.cli_cluster import CliCluster


def job(cluster: CliCluster, tmp_path: Path, topic: str) -> Path:
    file = tmp_path / "job.properties"
    file.write_text(f"bootstrap.servers={cluster.address}\ntopics={topic}\noutput={tmp_path}/out\n")
    return file


def test_without_java_a_load_is_refused_in_one_sentence(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.done("topics", "create", "loaded")
    cluster.done("produce", "loaded", text="one\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    file = job(cluster, tmp_path, "loaded")
    assert cluster.refused("load", "--config", file) == (
        "Spark needs Java 17 or newer, and there is no java on PATH or JAVA_HOME"
    )
    assert cluster.done("load", "history", "--config", file) == (
        f"There are no loads in {tmp_path}/out.\n"
    )


def test_options_before_a_commands_name_belong_to_the_command(
    cluster: CliCluster, tmp_path: Path
) -> None:
    file = job(cluster, tmp_path, "loaded")
    assert cluster.refused("load", "--config", file, "--topic", "other", "history") == (
        "the job loads no topic other: it loads loaded"
    )
    assert cluster.done("load", "--config", file, "--json", "history") == ""
    result = cluster.run("load", "--accept-loss", "history", "--config", file)
    assert result.exit_code == 2
    assert "No such option '--accept-loss'" in result.stderr


@pytest.mark.parametrize(
    ("command", "done"), [(("verify",), "verified"), ((), "made"), (("replay", "--from=1"), "made")]
)
def test_without_pyarrow_a_load_and_verify_say_so_in_one_sentence(
    command: tuple[str, ...],
    done: str,
    cluster: CliCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("verify", "counts", "job"):
        monkeypatch.delitem(sys.modules, f"kdist.spark.load.{name}", raising=False)
        if (package := sys.modules.get("kdist.spark.load")) is not None:
            monkeypatch.delattr(package, name, raising=False)
    assert cluster.refused("load", *command, "--config", job(cluster, tmp_path, "loaded")) == (
        f"loads are {done} with pyarrow, which is missing: pip install '.[spark]' in kdist's"
        " source tree"
    )


def test_a_check_online_looks_at_what_a_load_needs_and_leaves_nothing(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.done("topics", "create", "checked")
    cluster.done("produce", "checked", text="one\ntwo\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    file = job(cluster, tmp_path, "checked,chekced")
    assert cluster.done("load", "check", "--config", file) == (
        f"{file}: 2 topics, good as far as the file tells; brokers and output not looked at\n"
    )
    before = sorted(tmp_path.rglob("*"))
    result = cluster.run("load", "check", "--online", "--config", file)
    assert (result.exit_code, result.stderr) == (1, "")
    said = result.stdout.splitlines()
    assert said[0] == f"{file}: 2 topics, good as far as the file tells"
    assert said[1:3] == [
        "good   PySpark, pyarrow and Java are there",
        f"good   {tmp_path}/out can be made",
    ]
    assert said[3].startswith(f"good   brokers answer: {cluster.address}")
    assert said[4:] == [
        "good   checked has 2 offsets for load 1",
        "wrong  there is no topic chekced: did you mean checked?",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_check_online_tells_what_cannot_be_written_and_that_no_broker_answers(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    (tmp_path / "there" / "topic=t").mkdir(parents=True)
    file = tmp_path / "job.properties"
    output, metrics = tmp_path / "there", tmp_path / "none" / "load.prom"
    file.write_text(
        f"bootstrap.servers=127.0.0.1:1\ntopics=t\noutput={output}\nmetrics.file={metrics}\n"
    )
    result = cluster.run("load", "check", "--online", "--config", file)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.splitlines()[1:] == [
        f"wrong  JAVA_HOME is {tmp_path}, but there is no bin/java in it",
        f"good   {output} can be written to",
        f"good   {output}/topic=t can be written to",
        f"wrong  {metrics} cannot be written: {tmp_path}/none does not exist",
        "wrong  no broker answers at 127.0.0.1:1 (connection refused)",
    ]


@pytest.mark.parametrize(
    ("options", "given", "told"),
    [
        ((), "", {}),
        (("--json",), "", {"spark.ui.showConsoleProgress": "false"}),
        (("--json",), "true", {"spark.ui.showConsoleProgress": "true"}),
    ],
)
def test_spark_shows_no_progress_bar_beside_json_unless_the_job_asks_for_it(
    options: tuple[str, ...],
    given: str,
    told: dict[str, str],
    cluster: CliCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Runs:
        def __init__(self, job: LoadJob, world: object) -> None:
            asked.append(job.spark)

        def run(self, wish: object, tell: object) -> tuple[()]:
            return ()

    asked: list[dict[str, str]] = []
    monkeypatch.setattr("kdist.spark.load.job.LoadRun", Runs)
    file = job(cluster, tmp_path, "loaded")
    if given:
        with file.open("a") as settings:
            settings.write(f"spark.ui.showConsoleProgress={given}\n")
    cluster.done("load", "--config", file, *options)
    assert asked == [told]


def test_a_load_tells_how_far_it_is_on_standard_error_that_is_no_terminal(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runs:
        def __init__(self, _: LoadJob, context: LoadContext) -> None:
            assert context.on_progress is not None
            seen = Progress("clicks", 3, "reading and writing", 90_500, 1_200, 5_000, 3 << 20)
            context.on_progress(seen)

        def run(self, wish: object, tell: object) -> tuple[()]:
            return ()

    monkeypatch.setattr("kdist.spark.load.job.LoadRun", Runs)
    result = cluster.run("load", "--config", job(cluster, tmp_path, "clicks"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == (
        "clicks: load 3 after 90 s: reading and writing, 1,200 of 5,000 offsets done,"
        " 3.0 MiB written\n"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "clicks: nothing new; 1,200 offsets wait for open transactions\nviews: nothing new\n"),
        (("--json",), '{"topic":"clicks","unread":1200}\n{"topic":"views","unread":0}\n'),
    ],
)
def test_a_load_tells_how_many_offsets_wait_for_open_transactions(
    options: tuple[str, ...],
    told: str,
    cluster: CliCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_: LoadRun, __: RunOptions, tell: Callable[[Loaded], object]) -> list[Loaded]:
        outcomes = [Loaded("clicks", unread=1_200), Loaded("views")]
        for each in outcomes:
            tell(each)
        return outcomes

    monkeypatch.setattr(LoadRun, "run", run)
    assert cluster.done("load", "--config", job(cluster, tmp_path, "clicks"), *options) == told
