"""A broker's file becomes settings, or one error with every fault in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.broker_config import BROKER_NAMES, TOPIC_NAMES
from kdist.config.faults import ConfigError
from kdist.config.foreign import TABLE, find_foreign
from kdist.config.load import broker_from, load_broker
from kdist.errors import UserError

LEAST = {"broker.id": "1", "log.dir": "/d", "zookeeper.connect": "zk:2181"}
LEAST_TEXT = "".join(f"{name}={value}\n" for name, value in LEAST.items())


def faults_of(**given: str) -> tuple[str, ...]:
    """What is wrong with the least settings and these, given as log_dir for log.dir."""
    with pytest.raises(ConfigError) as caught:
        broker_from(LEAST | {name.replace("_", "."): text for name, text in given.items()})
    return caught.value.faults


def warnings_of(text: str) -> tuple[str, ...]:
    return load_broker(LEAST_TEXT + text, "f").warnings


def test_a_minimal_file_gives_the_defaults() -> None:
    config = load_broker(LEAST_TEXT, "server.properties")
    assert config.broker.id == 1
    assert config.broker.listeners == ("PLAINTEXT://:9092",)
    assert config.zookeeper.connect == "zk:2181"
    assert config.network.socket_request_max_bytes == 100 << 20
    assert config.groups.offsets_topic_num_partitions == 50
    assert config.storage.producer_id_expiration_ms == 86_400_000
    assert config.topic_defaults.segment_bytes == 1 << 30
    assert not config.warnings


def test_apache_kafkas_sample_file_is_accepted() -> None:
    config = load_broker(
        """\
        broker.id=0
        num.network.threads=3
        num.io.threads=8
        socket.send.buffer.bytes=102400
        socket.receive.buffer.bytes=102400
        socket.request.max.bytes=104857600
        log.dirs=/tmp/kafka-logs
        num.partitions=1
        num.recovery.threads.per.data.dir=1
        offsets.topic.replication.factor=1
        transaction.state.log.replication.factor=1
        transaction.state.log.min.isr=1
        log.retention.hours=168
        log.retention.check.interval.ms=300000
        zookeeper.connect=localhost:2181
        zookeeper.connection.timeout.ms=18000
        group.initial.rebalance.delay.ms=0
        """,
        "server.properties",
    )
    assert config.broker.directory == "/tmp/kafka-logs"
    assert [warning.partition(" ")[0] for warning in config.warnings] == [
        "num.network.threads",
        "num.io.threads",
        "num.recovery.threads.per.data.dir",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    ]


def test_all_faults_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = "nonsense=1\nnum.partitions=0\nnum.partitions=1\nssl.keystore.password=hunter2\n"
    text += "log.cleanup.policy=shred\nlog.segment.byte=3\nbroker.id=x\nlog.dir=/d\n"
    with pytest.raises(ConfigError) as caught:
        load_broker(text, "f")
    assert caught.value.faults == (
        "num.partitions is given twice: keep one (f, lines 2 and 3).",
        "nonsense is not a setting (f, line 1).",
        "num.partitions is '0', but must be an integer from 1 to 2147483647 (f, line 2).",
        "ssl.keystore.password cannot be set: this release has no TLS, SASL or access control,"
        " and would leave the broker open (f, line 4).",
        "log.cleanup.policy is 'shred', but must be any of delete, compact (f, line 5).",
        "log.segment.byte is not a setting: did you mean log.segment.bytes (f, line 6)?",
        "broker.id is 'x', but must be an integer from 0 to 2147483647 (f, line 7).",
        "zookeeper.connect must be given: the ensemble's servers and the cluster's root in it,"
        " as `host1:2181,host2:2181/kdist` (f).",
    )
    assert str(caught.value).splitlines() == list(caught.value.faults)
    assert isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("log.retention.hour", "log.retention.hours"),
        ("brokerid", "broker.id"),
        ("zookeeper.conect", "zookeeper.connect"),
        ("advertised.listener", "advertised.listeners"),
        ("flush.before.expose", "log.flush.before.expose"),
    ],
)
def test_the_error_for_a_misspelt_setting_suggests_the_nearest_one(wrong: str, right: str) -> None:
    assert faults_of(**{wrong: "1"}) == (f"{wrong} is not a setting: did you mean {right}?",)


def test_the_value_of_an_unknown_setting_is_not_repeated() -> None:
    assert "hunter2" not in "".join(faults_of(**{"ssl.key.passwort": "hunter2"}))
    assert "hunter2" not in "".join(faults_of(**{"my.passwort": "hunter2"}))


def test_a_bad_value_under_a_name_of_two_settings_is_one_fault() -> None:
    (fault,) = faults_of(**{"log.flush.scheduler.interval.ms": "0"})
    assert "from 1" in fault


def test_a_value_that_loses_is_checked_too() -> None:
    (fault,) = faults_of(**{"log.retention.ms": "1000", "log.retention.hours": "long"})
    assert fault.startswith("log.retention.hours is 'long'")


def test_a_name_without_effect_is_a_warning_that_names_the_winner() -> None:
    warnings = warnings_of("log.retention.hours=1\nlog.retention.minutes=90000\n")
    assert warnings == (
        "log.retention.hours has no effect, as log.retention.minutes is given too (f, line 4).",
    )


def test_a_fallback_that_has_a_use_of_its_own_is_no_warning() -> None:
    text = "log.flush.scheduler.interval.ms=1000\nlog.flush.interval.ms=5000\n"
    assert not warnings_of(text)


@pytest.mark.parametrize("row", TABLE)
def test_no_setting_is_both_declared_and_foreign(row: object) -> None:
    caught = {n for n in BROKER_NAMES | TOPIC_NAMES if (r := find_foreign(n)) and r == row}
    # `replica.*` and its like are looked at only for names that are not declared.
    assert not caught


def test_security_settings_are_refused_and_thread_settings_are_ignored() -> None:
    refused = ("ssl.keystore.location", "sasl.enabled.mechanisms", "authorizer.class.name")
    ignored = ("num.io.threads", "log.cleaner.threads", "compression.zstd.level")
    assert all((row := find_foreign(name)) and row.is_refused for name in refused)
    assert all((row := find_foreign(name)) and not row.is_refused for name in ignored)
    assert find_foreign("log.segment.bites") is None


@given(st.dictionaries(st.sampled_from(sorted(BROKER_NAMES)), st.text(max_size=8), max_size=6))
def test_any_input_gives_a_configuration_or_a_sentence(given: dict[str, str]) -> None:
    sentences = outcome_of(LEAST | given)
    assert sentences
    assert all(sentence.endswith((".", "?")) for sentence in sentences)


def outcome_of(given: dict[str, str]) -> list[str]:
    """The sentences of every setting, or the faults."""
    try:
        return [described.row.doc for described in broker_from(given, "f").describe()]
    except ConfigError as error:
        return list(error.faults)
