"""`kdist standalone` before anything runs: its directory, plans, ZooKeeper, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.cli.main import kdist
from kdist.cli.standalone.children import Death
from kdist.cli.standalone.home import Home, pick_last_words
from kdist.cli.standalone.zookeeper_server import (
    ServerSettings,
    configuration_text,
    find_jars,
    start_server,
)
from kdist.config.load import load_broker
from kdist.errors import UserError
from kdist.runtime.disk import Disk


def home(path: Path) -> Home:
    return Home(Disk(), str(path))


def refused(*arguments: object, path: str | None = None) -> str:
    """The one sentence that the command exits with."""
    environment = {"PATH": path, "JAVA_HOME": None} if path else {}
    words = ["standalone", *map(str, arguments)]
    result = CliRunner().invoke(kdist, words, env=environment)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("kdist: ").rstrip("\n")


def prepared(path: Path, brokers: int | None, **given: str) -> Home:
    """A directory as a run leaves it."""
    made = home(path)
    count = made.claim(brokers)
    made.prepare(count, 19092, "127.0.0.1:19091", given)
    made.close()
    return made


@pytest.fixture
def taken_port() -> Iterator[int]:
    """The one below it is free."""
    while True:
        with socket.socket() as listening, socket.socket() as below:
            listening.bind(("127.0.0.1", 0))
            port: int = listening.getsockname()[1]
            try:
                below.bind(("127.0.0.1", port - 1))
            except OSError:
                continue
            below.close()
            listening.listen()
            yield port
            return


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """Something in the place of Java."""
    path = tmp_path / "home/bin/java"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


# The directory


def test_a_new_directory_is_created_with_its_parents_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "a/b/data"
    prepared(path, 2)
    assert json.loads((path / "standalone.json").read_text())["brokers"] == 2
    assert sorted(each.name for each in path.iterdir() if each.is_dir()) == [
        "conf",
        "d01",
        "d02",
        "logs",
        "zookeeper",
    ]


def test_each_brokers_configuration_is_valid_without_warnings(tmp_path: Path) -> None:
    path = tmp_path / "odd = name"
    prepared(path, 3)
    for number in (1, 2, 3):
        conf = path / f"conf/d0{number}.properties"
        config = load_broker(conf.read_text(), str(conf))
        assert config.warnings == ()
        assert config.broker.id == number - 1
        assert config.broker.directory == f"{path}/d0{number}"
        assert config.broker.listeners == (f"PLAINTEXT://127.0.0.1:{19091 + number}",)
        assert config.zookeeper.connect == "127.0.0.1:19091"


def test_each_broker_counts_as_a_host_of_its_own(tmp_path: Path) -> None:
    prepared(tmp_path, 2)
    hosts = {
        load_broker(conf.read_text(), "").broker.host for conf in tmp_path.glob("conf/*.properties")
    }
    assert hosts == {"d01", "d02"}


def test_settings_that_are_given_reach_every_broker(tmp_path: Path) -> None:
    prepared(tmp_path, 2, **{"num.partitions": "4"})
    for conf in tmp_path.glob("conf/*.properties"):
        assert load_broker(conf.read_text(), "").broker.num_partitions == 4


@pytest.mark.parametrize(
    ("brokers", "factor", "min_isr"), [(1, 1, 1), (2, 1, 1), (3, 3, 2), (5, 3, 2)]
)
def test_three_brokers_or_more_replicate(
    tmp_path: Path, brokers: int, factor: int, min_isr: int
) -> None:
    prepared(tmp_path, brokers)
    for conf in tmp_path.glob("conf/*.properties"):
        config = load_broker(conf.read_text(), "")
        assert config.warnings == ()
        assert config.broker.default_replication_factor == factor
        assert config.topic_defaults.min_insync_replicas == min_isr


def test_how_many_replicas_there_are_can_be_chosen(tmp_path: Path) -> None:
    prepared(tmp_path, 3, **{"default.replication.factor": "2"})
    config = load_broker((tmp_path / "conf/d01.properties").read_text(), "")
    assert config.broker.default_replication_factor == 2
    assert config.topic_defaults.min_insync_replicas == 2


def test_the_next_run_has_as_many_brokers_unless_more_are_asked_for(tmp_path: Path) -> None:
    prepared(tmp_path, 2)
    for wanted, count in ((None, 2), (2, 2), (3, 3), (None, 3)):
        again = home(tmp_path)
        assert again.claim(wanted) == count
        again.prepare(count, 19092, "127.0.0.1:19091", {})
        again.close()


def test_by_default_there_is_one_broker(tmp_path: Path) -> None:
    assert home(tmp_path / "new").claim(None) == 1


def test_the_previous_runs_log_is_kept(tmp_path: Path) -> None:
    made = home(tmp_path)
    made.claim(1)
    (plan,) = made.prepare(1, 19092, "127.0.0.1:19091", {})
    made.new_log(plan).close()
    Path(plan.log).write_text("first\nlast line\n\n")
    assert made.last_words(plan.log) == "last line"
    made.new_log(plan).close()
    assert Path(plan.log).read_text() == ""
    assert Path(f"{plan.log}.1").read_text() == "first\nlast line\n\n"


def test_a_missing_log_has_no_last_words(tmp_path: Path) -> None:
    assert home(tmp_path).last_words(str(tmp_path / "missing.log")) == ""


def test_a_directory_with_only_lost_and_found_counts_as_empty(
    tmp_path: Path,
) -> None:
    (tmp_path / "lost+found").mkdir()
    assert home(tmp_path).claim(None) == 1


# Refusals


def test_fewer_brokers_than_have_data_are_refused(tmp_path: Path) -> None:
    prepared(tmp_path, 3)
    assert refused("--data", tmp_path, "--brokers", 2) == (
        f"{tmp_path} has the data of 3 brokers, and partitions on those left out could not be read:"
        " say --brokers 3, or name another directory with --data"
    )


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    sentence = refused("--data", tmp_path)
    assert sentence == (
        f"{tmp_path} is not a directory of `kdist standalone`, as it holds thesis.txt: name an"
        " empty one, or a new one, with --data"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert refused("--data", path) == f"{path} is not a directory"


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    running = home(tmp_path)
    running.claim(1)
    running.prepare(1, 19092, "127.0.0.1:19091", {})
    assert refused("--data", tmp_path) == f"{tmp_path} is in use by another `kdist standalone`"
    running.close()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', "7", '{"version": 1, "brokers": 1, "pids": [1]}']
)
def test_a_damaged_marker_is_a_one_sentence_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "standalone.json").write_text(text)
    assert refused("--data", tmp_path).endswith("is damaged: name another directory with --data")


def test_a_marker_of_another_release_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "standalone.json").write_text('{"version": 2, "brokers": 1}')
    with pytest.raises(UserError, match="another release"):
        home(tmp_path).claim(None)


def test_a_taken_port_is_a_one_sentence_error_and_starts_nothing(
    tmp_path: Path, taken_port: int
) -> None:
    sentence = refused("--data", tmp_path / "data", "--port", taken_port)
    assert sentence == (
        f"cannot listen on 127.0.0.1, port {taken_port}: another process does already;"
        " choose another with --port"
    )
    assert not (tmp_path / "data").exists()


def test_the_ports_of_further_brokers_are_checked_too(tmp_path: Path, taken_port: int) -> None:
    arguments = ("--data", tmp_path / "data", "--brokers", 2, "--port", taken_port - 1)
    assert f"port {taken_port}: another process" in refused(*arguments)


def test_a_requested_zookeeper_port_that_is_taken_is_a_one_sentence_error(
    tmp_path: Path, taken_port: int, free_port: int
) -> None:
    arguments = ("--port", free_port, "--zookeeper-port", taken_port)
    sentence = refused("--data", tmp_path / "data", *arguments)
    assert sentence.endswith("choose another with --zookeeper-port")


def test_zookeeper_cannot_have_a_brokers_port(tmp_path: Path) -> None:
    arguments = ("--brokers", 2, "--port", 20000, "--zookeeper-port", 20001)
    sentence = refused("--data", tmp_path / "data", *arguments)
    assert sentence == "port 20001 is a broker's: give ZooKeeper another"


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_ports_beyond_65535_are_a_one_sentence_error(tmp_path: Path) -> None:
    arguments = ("--data", tmp_path / "data", "--brokers", 3, "--port", 65534)
    assert refused(*arguments) == "3 brokers from port 65534 on go beyond 65535"


def test_a_missing_java_is_a_one_sentence_error_and_leaves_nothing(tmp_path: Path) -> None:
    sentence = refused("--data", tmp_path / "data", path=str(tmp_path))
    assert sentence == (
        "ZooKeeper needs Java 17 or newer, and there is no java on PATH or JAVA_HOME"
    )
    assert not (tmp_path / "data").exists()


def test_a_misspelt_setting_gets_the_nearest(tmp_path: Path, free_port: int) -> None:
    arguments = ("--data", tmp_path / "data", "--port", free_port)
    sentence = refused(*arguments, "--config", "num.partitons=3")
    assert sentence == ("num.partitons is not a setting: did you mean num.partitions (--config)?")
    assert not (tmp_path / "data").exists()


def test_settings_that_it_manages_itself_cannot_be_set(tmp_path: Path, free_port: int) -> None:
    arguments = ("--data", tmp_path / "data", "--port", free_port)
    sentence = refused(*arguments, "--config", "log.dir=/x")
    assert sentence == "log.dir cannot be set by --config: it is `kdist standalone`'s own"


# Deaths


def test_a_death_is_reported_with_its_status_and_last_words() -> None:
    death = Death("broker d01", 74, "/x/d01.log", "the disk under /x failed")
    assert str(death) == (
        "broker d01 ended with status 74 (log: /x/d01.log): the disk under /x failed"
    )
    assert death.exit_status == 74


def test_a_death_by_a_signal_names_the_signal() -> None:
    death = Death("broker d02", -9, "/x/d02.log", "")
    assert str(death) == "broker d02 was ended by SIGKILL (log: /x/d02.log)"
    assert death.exit_status == 137


def test_a_child_that_ends_by_itself_is_never_a_success() -> None:
    assert Death("broker d01", 0, "/x", "").exit_status == 1
    assert str(Death("ZooKeeper", 0, "/x", "")) == "ZooKeeper ended with status 0 (log: /x)"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        ("one\ntwo\n\n", "two"),
        ("kdist: the port is taken\nclosing\n", "the port is taken"),
        ("1Z CRITICAL a.b: the disk failed\n2Z INFO a.b: closed\n", "the disk failed"),
        ("1Z ERROR a: first\n2Z ERROR a: second\n", "second"),
        (
            "1Z CRITICAL a: a bug: Traceback:\\n  File\\n    x = y\\nNameError: y\\n\n3Z INFO a: b",
            "a bug: Traceback: … NameError: y",
        ),
    ],
)
def test_the_last_words_are_the_lines_that_say_why(log: str, words: str) -> None:
    assert pick_last_words(log) == words


def test_the_jars_are_found_without_importing_pyspark() -> None:
    assert find_jars(Disk()).endswith("/pyspark/jars")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package of a name that nobody has used."""
    name = f"spark{random.getrandbits(32):x}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / name


def test_missing_jars_get_one_sentence_each(package: Path) -> None:
    with pytest.raises(UserError, match="come with PySpark"):
        find_jars(Disk(), f"no_{package.name}")
    with pytest.raises(UserError, match="without its jars"):
        find_jars(Disk(), package.name)
    (package / "jars").mkdir()
    with pytest.raises(UserError, match="no ZooKeeper among"):
        find_jars(Disk(), package.name)
    (package / "jars/zookeeper-3.9.5.jar").touch()
    assert find_jars(Disk(), package.name) == str(package / "jars")


def test_a_java_that_cannot_be_run_gets_one_sentence(java: Path, tmp_path: Path) -> None:
    settings = ServerSettings(str(tmp_path), 1)  # a port that nobody listens on
    with pytest.raises(UserError, match="Java does not start"):
        asyncio.run(start_server(settings, Disk(), {"JAVA_HOME": str(java.parents[1])}))


@pytest.mark.parametrize(
    "name", ["josé", "数据", "\N{GRINNING FACE}", "a b", "a\\b", 'a"b', "a=b:c"]
)
def test_java_reads_the_directory_that_was_named(name: str) -> None:
    text = configuration_text(ServerSettings(f"/{name}", 2182))
    assert text.isascii()
    read = text.encode("ascii").decode("unicode_escape", errors="strict")
    directory = next(line for line in read.split("\n") if line.startswith("dataDir="))
    assert directory.encode("utf-16", "surrogatepass").decode("utf-16") == f"dataDir=/{name}/data"


def test_a_directory_that_java_cannot_open_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    for name in ("not-utf8-\udcff", "line\nfeed"):
        directory = f"{tmp_path}/{name}"
        result = CliRunner().invoke(kdist, ["standalone", "--data", directory])
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_the_configuration_stands_alone_on_one_address() -> None:
    settings = ServerSettings("/data/zookeeper", 2182, "127.0.0.2", tick_ms=500)
    lines = configuration_text(settings).splitlines()
    for line in (
        "dataDir=/data/zookeeper/data",
        "clientPort=2182",
        "clientPortAddress=127.0.0.2",
        "tickTime=500",
        "admin.enableServer=false",
    ):
        assert line in lines
    assert settings.address == "127.0.0.2:2182"
