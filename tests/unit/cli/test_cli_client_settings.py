"""Settings of a command's clients: which place wins, and what is refused, in which sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kdist.cli.main import kdist
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.options import print_json
from kdist.client.admin.client_settings import read_settings
from kdist.client.security import client_security
from tests.unit.cli.cli_cluster import CliCluster

PROFILES = {
    "default": "bootstrap.servers=default:1\nclient.id=from default\n",
    "prod": "bootstrap.servers=prod:1\nclient.id=from prod\nlinger.ms=7\ngroup.id=g\n",
    "zk": "zk.connect=zk:2181/kdist\n",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory for XDG_CONFIG_HOME, with profiles."""
    (tmp_path / "kdist").mkdir()
    for name, text in PROFILES.items():
        (tmp_path / f"kdist/{name}.properties").write_text(text)
    return tmp_path


@click.command()
@client_options("producer")
def shows(clients: Clients) -> None:
    """Prints what a command that produces would open its clients with."""
    defaults = {"delivery_timeout_ms": 30_000}
    print_json([clients.settings("producer", defaults), clients.settings("admin")])


def run(home: Path, *words: str, program: click.Command = shows, **variables: str) -> Result:
    environment = {"XDG_CONFIG_HOME": str(home), "KDIST_BROKER": None, "KDIST_PROFILE": None}
    return CliRunner().invoke(program, words, env={**environment, **variables})


def given(home: Path, *words: str, **variables: str) -> dict[str, Any]:
    """The producer's settings but for the command's default."""
    result = run(home, *words, **variables)
    assert result.exit_code == 0, result.output
    producer: dict[str, Any] = json.loads(result.stdout)[0]
    assert producer.pop("delivery_timeout_ms") == 30_000
    return producer


def test_a_user_and_its_password_come_from_a_file(home: Path) -> None:
    secured = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "sasl_password": "secret",
    }
    lines = (f"{name.replace('_', '.')}={value}\n" for name, value in secured.items())
    (home / "kdist/secured.properties").write_text("".join(lines))
    found = given(home, "--profile", "secured")
    assert secured.items() <= found.items()
    assert client_security(read_settings(found)) is not None


def test_without_a_word_the_default_broker_is_asked(tmp_path: Path) -> None:
    assert given(tmp_path) == {"bootstrap_servers": "127.0.0.1:9092"}


def test_each_place_wins_over_those_behind_it(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\n")
    words = ["--broker", "option:1", "-X", "bootstrap.servers=x:1", "--config", str(file)]
    words += ["--profile", "prod"]
    variables = {"KDIST_BROKER": "variable:1", "KDIST_PROFILE": "prod"}
    found = [
        given(home, *words[begin:], **variables)["bootstrap_servers"] for begin in range(0, 10, 2)
    ]
    del variables["KDIST_BROKER"]
    found.append(given(home, **variables)["bootstrap_servers"])
    found.append(given(home)["bootstrap_servers"])
    assert found == ["option:1", "x:1", "file:1", "prod:1", "variable:1", "prod:1", "default:1"]


def test_a_setting_that_the_winner_lacks_comes_from_the_next_place(home: Path) -> None:
    found = given(home, "-X", "linger_ms=3", "--profile", "prod")
    assert found == {
        "bootstrap_servers": "prod:1",
        "client_id": "from prod",
        "linger_ms": "3",
    }


def test_a_named_profile_stands_for_the_default_one_as_a_whole(home: Path) -> None:
    assert given(home, "--profile", "zk") == {"zk_connect": "zk:2181/kdist"}


def test_a_place_that_gives_brokers_hides_a_zookeeper_behind_it(home: Path) -> None:
    found = given(home, "--broker", "option:1", "--profile", "zk")
    assert found == {"bootstrap_servers": "option:1"}
    found = given(home, "-X", "zk.connect=z:1", "--profile", "prod")
    assert found == {"zk_connect": "z:1", "client_id": "from prod", "linger_ms": "7"}


def test_a_defaults_place_is_behind_all_others(home: Path) -> None:
    result = run(home, "-X", "delivery.timeout.ms=9000")
    assert json.loads(result.stdout)[0]["delivery_timeout_ms"] == "9000"


def test_each_client_gets_its_own_settings_of_a_shared_file(home: Path) -> None:
    producer, admin = json.loads(run(home, "--profile", "prod").stdout)
    assert "linger_ms" in producer
    assert "group_id" not in producer
    assert admin == {"bootstrap_servers": "prod:1", "client_id": "from prod"}


def test_the_first_producers_name_for_brokers_is_understood(home: Path) -> None:
    assert given(home, "-X", "broker.list=b:1")["bootstrap_servers"] == "b:1"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("lingr.ms=5", "no client has a setting lingr.ms: did you mean linger.ms?"),
        ("lingr_ms=5", "no client has a setting lingr_ms: did you mean linger_ms?"),
        ("sasl=5", "no client has a setting sasl."),
        ("linger.ms", "'linger.ms' is not NAME=VALUE."),
        ("linger.ms=soon", "linger.ms is 'soon', and must be a number from 0."),
        ("acks=2", "acks is '2', and must be one of all, -1, 1, 0."),
        ("partitioner=murmur", "partitioner is 'murmur', and must be one of sticky, round_robin"),
        ("bootstrap.servers=b", "'b' is not a broker's address: give host:port."),
        ("group.id=g", "group.id is a consumer's setting, and this command has none."),
        ("sasl.password=x", "sasl.password belongs in a file, --config: "),
        ("value_encoder=str", "no client has a setting value_encoder"),
    ],
)
def test_a_wrong_setting_on_the_command_line_is_a_wrong_flag(
    home: Path, words: str, sentence: str
) -> None:
    result = run(home, "-X", words)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"Error: Invalid value for '-X': {sentence}")


def test_one_setting_given_twice_is_refused(home: Path) -> None:
    result = run(home, "-X", "linger.ms=5", "-X", "linger_ms=6")
    assert result.exit_code == 2
    assert "'-X': linger.ms and linger_ms are one setting: keep one.\n" in result.stderr
    assert "linger.ms is given twice." in run(home, *["-X", "linger.ms=5"] * 2).stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lingr.ms=5", "no client has a setting lingr.ms: did you mean linger.ms? ({}, line 2)"),
        ("acks=2", "acks is '2', and must be one of all, -1, 1, 0 ({}, line 2)"),
        ("max.poll.records=0", "max.poll.records is '0', and must be an integer from 1"),
        ("x=\\uZZZZ", "\\u needs four hexadecimal digits ({}, line 2)."),
        ("acks=1\nacks=1", "acks is given twice: keep one ({}, lines 2 and 3)."),
        ("linger.ms=5\nlinger_ms=5", "linger.ms and linger_ms are one setting: keep one ({})"),
    ],
)
def test_a_mistake_in_a_file_is_a_sentence_with_its_place(
    home: Path, text: str, sentence: str
) -> None:
    file = home / "kdist/wrong.properties"
    file.write_text(f"# shared\n{text}\n")
    for words in (["--config", str(file)], ["--command-config", str(file)]):
        refused = run(home, "topics", "list", *words, program=kdist)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"kdist: {sentence.format(file)}")
        assert refused.stderr.count("\n") == 1
    for words in (["--profile", "wrong", "topics", "list"], ["topics", "list", "--profile=wrong"]):
        assert run(home, *words, program=kdist).stderr == refused.stderr
    assert run(home, "topics", "list", program=kdist, KDIST_PROFILE="wrong").stderr == (
        refused.stderr
    )


def test_a_missing_profile_gets_the_nearest(home: Path) -> None:
    refused = run(home, "--profile", "prd", "topics", "list", program=kdist)
    path = home / "kdist/prd.properties"
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"kdist: there is no profile prd: {path} does not exist: did you mean prod?\n",
    )
    refused = run(home, "topics", "list", "--profile", "../kdist/prod", program=kdist)
    assert refused.stderr.startswith("kdist: there is no profile ../kdist/prod: ")
    refused = run(home, "--profile", "", "topics", "list", program=kdist)
    assert refused.exit_code == 2
    refused = run(home, "--profile", "prd", "completion", "bash", program=kdist)
    assert refused.exit_code == 1


def test_a_missing_file_is_a_sentence(home: Path) -> None:
    refused = run(home, "topics", "list", "--config", "gone.properties", program=kdist)
    assert (refused.exit_code, refused.stderr) == (1, "kdist: gone.properties does not exist\n")


def test_profiles_are_in_the_home_directory_unless_xdg_says_otherwise(home: Path) -> None:
    (home / "kdist").rename(home / "moved")
    (home / ".config").mkdir()
    (home / "moved").rename(home / ".config/kdist")
    for base in ("", "not/absolute"):
        result = run(home, HOME=str(home), XDG_CONFIG_HOME=base)
        assert json.loads(result.stdout)[0]["client_id"] == "from default"


def test_a_topics_own_config_leaves_the_clients_file_another_name(cluster: CliCluster) -> None:
    for command in ("create", "alter"):
        assert "--command-config FILE" in cluster.done("topics", command, "--help")
    cluster.done("topics", "create", "configured", "--config", "retention.ms=1000")
    found = json.loads(cluster.done("topics", "describe", "configured", "--json"))
    assert found["settings"] == {"retention.ms": "1000"}


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "list"],
        ["groups", "list"],
        ["cluster", "describe"],
        ["configs", "list"],
        ["topics", "describe", "profiled"],
        ["produce", "profiled"],
        ["consume", "profiled", "--until-end"],
    ],
)
def test_every_command_that_asks_a_cluster_goes_by_the_profile(
    cluster: CliCluster, home: Path, words: list[str]
) -> None:
    cluster.run("topics", "create", "profiled", "--if-not-exists")
    text = f"bootstrap.servers={cluster.address}\nacks=1\nisolation.level=read_committed\n"
    (home / "kdist/here.properties").write_text(text)
    for given in (["--profile", "here", *words], [*words, "--profile", "here"]):
        result = run(home, *given, program=kdist)
        assert result.exit_code == 0, result.output


def test_profiles_and_settings_are_completed(home: Path) -> None:
    def offered(line: str) -> list[str]:
        variables = {"_KDIST_COMPLETE": "bash_complete", "COMP_WORDS": line}
        count = len(line.split(" ")) - 1
        result = run(home, program=kdist, COMP_CWORD=str(count), **variables)
        return [each.partition(",")[2] for each in result.stdout.splitlines()]

    assert offered("kdist --profile p") == ["prod"]
    assert offered("kdist topics list --profile ") == ["default", "prod", "zk"]
    assert offered("kdist topics list -X default.") == ["default.api.timeout.ms="]


def test_names_are_completed_from_the_profiles_cluster(cluster: CliCluster, home: Path) -> None:
    cluster.run("topics", "create", "profile-topic")
    (home / "kdist/here.properties").write_text(f"bootstrap.servers={cluster.address}\n")
    variables = {"_KDIST_COMPLETE": "bash_complete", "COMP_CWORD": "5"}
    line = "kdist --profile here topics describe profile-t"
    result = run(home, program=kdist, COMP_WORDS=line, **variables)
    assert result.stdout == "plain,profile-topic\n"
    (home / "kdist/here.properties").rename(home / "kdist/default.properties")
    variables["COMP_CWORD"] = "3"
    line = "kdist topics describe profile-t"
    result = run(home, program=kdist, COMP_WORDS=line, **variables)
    assert result.stdout == "plain,profile-topic\n"
