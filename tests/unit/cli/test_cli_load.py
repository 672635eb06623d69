"""`kdist load` on the command line, as far as it goes without Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kdist.config.load_job import LoadJob
from kdist.spark.load.job import LoadContext
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


def test_without_pyarrow_verify_says_so_in_one_sentence(
    cluster: CliCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("kdist.spark.load.verify", "kdist.spark.load.footers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if (package := sys.modules.get("kdist.spark.load")) is not None:
        monkeypatch.delattr(package, "verify", raising=False)
    assert cluster.refused("load", "verify", "--config", job(cluster, tmp_path, "loaded")) == (
        "loads are verified with pyarrow, which is missing: pip install '.[spark]' in kdist's"
        " source tree"
    )


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
        "clicks: load 3 after 90 s: reading and writing, 1,200 of 5,000 offsets read,"
        " 3.0 MiB written\n"
    )
