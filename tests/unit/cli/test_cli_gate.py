"""`kdist gate` as people and playbooks meet it, on a ZooKeeper in memory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kdist.cli.main import kdist
from kdist.client import zookeeper_session
from kdist.config.addresses import Listener
from kdist.config.load import load_broker
from kdist.errors import KdistError, UserError
from kdist.ops import cluster_view
from kdist.ops.gate import PartitionView
from kdist.runtime.clock import SystemClock
from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.registration import BrokerRegistration, Endpoint
from kdist.zk.values import ControllerInfo, PartitionState, TopicAssignment

NOBODY = Listener("PLAINTEXT", "127.0.0.1", 1)


class Ensemble:
    """Brokers 1 and 2, and topic clicks with its one partition on both."""

    def __init__(self) -> None:
        self.servers = MemoryEnsemble(SystemClock(), random.Random(1))
        self.files: list[str] = []  # of brokers, by which it was asked
        asyncio.run(self._fill())

    @asynccontextmanager
    async def at(self, address: str) -> AsyncIterator[ZooKeeper]:
        if address.startswith("/"):
            self.files.append(address)
            address = load_broker(Path(address).read_text(), address).zookeeper.connect
        servers, slash, path = address.partition("/")
        if servers != "zk":
            raise UserError(f"no ZooKeeper answers at {address}")
        client = self.servers.client(slash + path)
        await client.connect()
        try:
            yield client
        finally:
            await client.close()

    async def _fill(self) -> None:
        async with self.at("zk") as keeper:
            endpoints = (Endpoint(NOBODY, "PLAINTEXT"),)
            for broker in (1, 2):
                data = BrokerRegistration(endpoints, 0, host=f"h{broker}").encode()
                await keeper.create(znodes.BROKER.path(broker), data, make_parents=True)
            await keeper.create(znodes.CONTROLLER.path(), ControllerInfo(1, 0).encode())
            topic = TopicAssignment({0: (1, 2)}, None).encode()
            await keeper.create(znodes.TOPIC.path("clicks"), topic, make_parents=True)
            state = PartitionState(1, 0, (1, 2), 1).encode()
            path = znodes.PARTITION_STATE.path("clicks", 0)
            await keeper.create(path, state, make_parents=True)


ask_min_isr = cluster_view.ask_min_isr


async def nobody_asks(_zookeeper: ZooKeeper, _settings: object) -> int:
    """Nobody listens where these brokers are registered."""
    return 1


@pytest.fixture(autouse=True)
def ensemble(monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    made = Ensemble()
    monkeypatch.setattr(zookeeper_session, "zookeeper_at", made.at)
    monkeypatch.setattr(cluster_view, "ask_min_isr", nobody_asks)
    return made


def gate(*words: object, zookeeper: str = "zk") -> Result:
    environment = {"KDIST_ZOOKEEPER": zookeeper}
    result = CliRunner().invoke(kdist, ["gate", *map(str, words)], env=environment)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def test_a_broker_may_go_down() -> None:
    result = gate("--broker", 2, "--expect", "1,2")
    assert (result.exit_code, result.stdout) == (0, "yes   broker 2 may go down now\n")


def test_a_missing_broker_is_a_reason_against_a_stop() -> None:
    result = gate("--broker", 2, "--expect", "1,2,3")
    assert (result.exit_code, result.stdout) == (1, "no    broker 3 not registered\n")


def test_json_has_the_answer_and_its_grounds() -> None:
    assert json.loads(gate("--broker", 1, "--json").stdout) == {
        "broker": 1,
        "host": None,
        "asked": [1],
        "answer": "yes",
        "reasons": [],
        "moves": None,
        "single_replica": [],
        "partitions": 1,
        "topics": ["clicks"],
        "moving": False,
        "controller": 1,
        "brokers": [1, 2],
        "lack": None,
    }


def test_a_broker_that_is_to_get_partitions_is_told_as_one_that_moves(ensemble: Ensemble) -> None:
    """Whoever takes an empty broker away looks at both."""

    async def grow() -> None:
        async with ensemble.at("zk") as keeper:
            topic = TopicAssignment({0: (1, 2, 3)}, None, adding={0: (3,)})
            await keeper.set(znodes.TOPIC.path("clicks"), topic.encode())

    asyncio.run(grow())
    found = json.loads(gate("--broker", 3, "--json").stdout)
    assert (found["partitions"], found["moving"]) == (0, True)


def test_a_hosts_brokers_are_asked_for_together() -> None:
    result = gate("--host", "h2", "--expect", "1,2")
    assert (result.exit_code, result.stdout) == (0, "yes   host h2 (brokers 2) may go down now\n")
    found = json.loads(gate("--host", "h2", "--json").stdout)
    assert (found["broker"], found["host"], found["asked"]) == (None, "h2", [2])


def test_the_brokers_file_gives_its_id_zookeeper_and_min_isr(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("broker.id=2\nlog.dir=/data\nzookeeper.connect=zk\nmin.insync.replicas=2\n")
    result = gate("--config", file, zookeeper="")
    assert result.exit_code == 1
    assert "clicks-0 would have 1 in-sync replica, and asks for 2" in result.stdout


def test_the_brokers_file_gives_its_credentials_for_zookeeper_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ensemble: Ensemble
) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("broker.id=2\nlog.dir=/data\nzookeeper.connect=zk\n")
    monkeypatch.chdir(tmp_path)
    assert gate("--config", file.name, zookeeper="").exit_code == 0
    assert ensemble.files == [str(file)]


def test_without_a_file_and_without_a_broker_to_ask_it_cannot_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_view, "ask_min_isr", ask_min_isr)
    monkeypatch.setattr(cluster_view, "PATIENCE_S", 0.1)
    result = gate("--broker", 2)
    assert result.exit_code == 2
    assert result.stderr.startswith("kdist: no broker answers at 127.0.0.1:1 ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("security.protocol=SASL_SSL\n", "needs sasl_mechanism"),
        ("security.protocoll=SSL\n", "no client has a setting security.protocoll"),
        ("security.protocol=SSL\n", "no broker has a listener for SSL"),
    ],
)
def test_with_a_wrong_file_of_connections_it_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.setattr(cluster_view, "ask_min_isr", ask_min_isr)
    file = tmp_path / "client.properties"
    file.write_text(text)
    result = gate("--broker", 2, "--command-config", file)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "zookeeper", "sentence"),
    [
        (["--broker", 1], "gone", "no ZooKeeper answers at gone"),
        (["--broker", 1], "", "where is the cluster?"),
        ([], "zk", "which broker?"),
        (["--host", "h9"], "zk", "no broker is registered on host 'h9': there are h1, h2"),
        (["--host", "h2", "--broker", 1], "zk", "give --broker or --host, not both"),
        (["--broker", "1;2"], "zk", "--broker '1;2' is not a list of broker ids"),
        (["--broker", 1, "--expect", "1;2"], "zk", "'1;2' is not a list of broker ids"),
        (["--broker", 1, "--down", "1;2"], "zk", "--down '1;2' is not a list of broker ids"),
        (["--broker", 1, "--expect", "9" * 5000], "zk", "is not a list of broker ids"),
        (["--broker", 1], "zk/elsewhere", "there is no cluster at zk/elsewhere"),
        (["--config", "/"], "zk", "/: Is a directory"),
    ],
)
def test_without_an_answer_the_status_is_2(
    words: list[object], zookeeper: str, sentence: str
) -> None:
    result = gate(*words, zookeeper=zookeeper)
    assert result.exit_code == 2
    assert sentence in result.stderr
    said = json.loads(gate(*words, "--json", zookeeper=zookeeper).stdout)
    assert said["answer"] == "unknown"


def test_a_broker_that_does_not_serve_is_not_back() -> None:
    result = gate("--broker", 2, "--after")
    assert result.exit_code == 1
    assert "no record could be written and read through broker 2: no broker answers" in (
        result.stdout
    )


def test_no_record_is_written_for_a_broker_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roll asks every few seconds, and each probe makes and deletes a topic."""
    probed: list[list[int]] = []

    async def probe(_cluster: object, brokers: list[int], _now_ms: int) -> dict[int, KdistError]:
        probed.append(brokers)
        return {}

    monkeypatch.setattr("kdist.ops.probe.probe", probe)
    assert gate("--broker", 2, "--after", "--expect", "1,2,3").exit_code == 1
    assert probed == []
    assert gate("--broker", 2, "--after", "--expect", "1,2").exit_code == 0
    assert probed == [[2]]
    result = gate("--brokers", "1,2", "--after", "--expect", "1,2")
    assert (result.exit_code, result.stdout) == (0, "yes   brokers 1, 2 are fully back\n")
    assert probed == [[2], [1, 2]]


def test_how_much_a_broker_lacks_is_said_where_that_is_asked_for(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lacking_bytes(_cluster: object, broker: int, behind: list[PartitionView]) -> int:
        return 3 << 30 if [broker, len(behind)] == [2, 1] else 0

    async def falls_behind() -> None:
        async with ensemble.at("zk") as keeper:
            path = znodes.PARTITION_STATE.path("clicks", 0)
            await keeper.set(path, PartitionState(1, 0, (1,), 1).encode())

    monkeypatch.setattr(cluster_view, "lacking_bytes", lacking_bytes)
    whole = json.loads(gate("--broker", 2, "--after", "--measure", "--json").stdout)
    assert whole["lack"] == {"partitions": 0, "bytes": 0}
    asyncio.run(falls_behind())
    found = json.loads(gate("--broker", 2, "--after", "--measure", "--json").stdout)
    assert (found["answer"], found["lack"]) == ("no", {"partitions": 1, "bytes": 3 << 30})
    said = gate("--broker", 2, "--after", "--measure").stdout
    assert said.endswith("note  it lacks 3.0 GiB of 1 partition\n")
    assert json.loads(gate("--broker", 2, "--after", "--json").stdout)["lack"] is None
    assert gate("--broker", 2, "--measure").exit_code == 2


def test_a_lock_is_held_and_released_by_its_run_alone() -> None:
    assert gate("holder").stdout == "Nobody holds the lock.\n"
    mine = ("--owner", "anna", "--run", "r1")
    assert gate("lock", *mine).stdout == "'anna' has the lock.\n"
    assert gate("lock", *mine).stdout == "'anna' has the lock, as before.\n"
    found = json.loads(gate("holder", "--json").stdout)
    assert (found["owner"], found["run"]) == ("anna", "r1")
    assert found["until_ms"] - found["since_ms"] >= 900_000
    refused = gate("lock", "--owner", "anna", "--run", "r2")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("kdist: 'anna' holds the lock by run r1, whose lease ends in ")
    assert gate("unlock", "--run", "r2").stdout == "Run r2 has not held the lock.\n"
    assert gate("unlock", "--run", "r1").stdout == "The lock is free.\n"
    assert gate("unlock", "--force").stdout == "Nobody held the lock.\n"


def test_the_gate_renews_the_lease_of_the_run_that_asks() -> None:
    gate("lock", "--owner", "anna", "--run", "r1", "--lease", 60)
    before = json.loads(gate("holder", "--json").stdout)
    assert gate("--broker", 2, "--renew", "r1", "--lease", 600).exit_code == 0
    after = json.loads(gate("holder", "--json").stdout)
    assert after["until_ms"] >= before["until_ms"] + 500_000
    lost = gate("--broker", 2, "--renew", "r2")
    assert (lost.exit_code, lost.stderr) == (1, "kdist: run r2 has lost the lock\n")


@pytest.mark.parametrize(
    "words",
    [["lock", "--owner", "a", "--run", "r"], ["unlock", "--run", "r"], ["holder"]],
)
def test_the_status_is_2_if_the_lock_cannot_be_read(words: list[str]) -> None:
    result = gate(*words, zookeeper="gone")
    assert (result.exit_code, result.stderr) == (2, "kdist: no ZooKeeper answers at gone\n")


@pytest.mark.parametrize("words", [["--owner", " ", "--run", "r"], ["--owner", "a", "--run", ""]])
def test_a_lock_needs_the_names_of_an_owner_and_a_run(words: list[str]) -> None:
    result = gate("lock", *words)
    assert result.exit_code == 2
    assert "it is empty." in result.stderr
    assert gate("holder").stdout == "Nobody holds the lock.\n"
    assert "Whose lock? Give --run, or --force." in gate("unlock").stderr


def test_options_before_the_commands_name_belong_to_the_command() -> None:
    words = ("--zookeeper", "zk", "--json", "holder")
    assert json.loads(gate(*words, zookeeper="gone").stdout)["run"] is None
    assert gate("--zookeeper", "gone", "holder", "--zookeeper", "zk").exit_code == 0
    refused = gate("--after", "holder")
    assert refused.exit_code == 2
    assert "No such option '--after'" in refused.stderr


def test_a_lock_whose_owner_is_gone_can_be_taken_by_force() -> None:
    gate("lock", "--owner", "anna", "--run", "r1")
    assert gate("unlock", "--force").exit_code == 0
    taken = gate("lock", "--owner", "bert", "--run", "r2", "--json")
    assert json.loads(taken.stdout)["taken"] is True


@pytest.mark.parametrize("words", ["gate plan", "gate rollback", "zookeeper review"])
@pytest.mark.parametrize("text", ["", "[1", "[" * 100_000])
def test_an_input_that_is_no_json_is_refused_in_a_sentence(words: str, text: str) -> None:
    result = CliRunner().invoke(kdist, words.split(), input=text)
    assert result.exit_code == 1
    assert result.stderr.startswith("kdist: standard input is not JSON: ")
    assert result.stderr.count("\n") == 1
