"""A topic's override goes before the broker's value, that before the default; synonyms in order."""

from __future__ import annotations

import re

import pytest

from kdist.config.broker_config import BrokerConfig, resolve_topic
from kdist.config.declare import Settings, setting, settings
from kdist.config.faults import HIDDEN, ConfigError, Given
from kdist.config.kinds import INT64_MAX, secret
from kdist.config.layers import Described, Layer, Origin, Source, describe, layer_of, resolve
from kdist.config.load import broker_from, with_dynamic

LEAST = {"broker.id": "1", "log.dir": "/d", "zookeeper.connect": "zk:2181"}


def broker(**given: str) -> BrokerConfig:
    return broker_from(LEAST | {name.replace("_", "."): text for name, text in given.items()})


def described(config: BrokerConfig, name: str, **overrides: str) -> Described:
    given = {key.replace("_", "."): text for key, text in overrides.items()}
    return next(row for row in config.describe_topic(given) if row.name == name)


def test_a_topic_takes_its_override_then_the_brokers_value_then_the_default() -> None:
    assert broker().topic({}).segment_bytes == 1 << 30
    config = broker(log_segment_bytes="2000000")
    assert config.topic({}).segment_bytes == 2_000_000
    assert config.topic({"segment.bytes": "3000000"}).segment_bytes == 3_000_000
    assert config.topic_defaults == config.topic({})


def test_retention_by_size_takes_whatever_is_negative_for_no_limit_as_kafka_does() -> None:
    assert broker(log_retention_bytes="-2").topic({}).retention_bytes == -2
    assert broker().topic({"retention.bytes": "-2"}).retention_bytes == -2
    with pytest.raises(ConfigError, match=r"retention\.ms"):
        broker().topic({"retention.ms": "-2"})


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1", "log.retention.ms": "1"}, 1),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_retention_in_ms_goes_before_minutes_before_hours(given: dict[str, str], ms: int) -> None:
    assert broker_from(LEAST | given).topic_defaults.retention_ms == ms


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ({}, INT64_MAX),
        ({"log.flush.scheduler.interval.ms": "500"}, 500),
        ({"log.flush.scheduler.interval.ms": "500", "log.flush.interval.ms": "70"}, 70),
    ],
)
def test_the_flush_interval_falls_back_to_the_schedulers(given: dict[str, str], ms: int) -> None:
    assert broker_from(LEAST | given).topic_defaults.flush_ms == ms


def test_the_roll_interval_and_its_jitter_may_be_given_in_hours() -> None:
    topic = broker(log_roll_hours="2", log_roll_jitter_hours="1").topic_defaults
    assert (topic.segment_ms, topic.segment_jitter_ms) == (7_200_000, 3_600_000)


def test_one_old_name_bounds_timestamps_on_both_sides() -> None:
    topic = broker().topic(
        {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "9"}
    )
    assert topic.message_timestamp_before_max_ms == 5
    assert topic.message_timestamp_after_max_ms == 9


def test_dynamic_broker_settings_go_before_the_files_whatever_the_synonym() -> None:
    file = broker(log_retention_minutes="7")
    own = layer_of(Source.DYNAMIC_BROKER_CONFIG, {"log.segment.bytes": "20"})
    shared = layer_of(Source.DYNAMIC_DEFAULT_BROKER_CONFIG, {"log.retention.ms": "5"})
    config = with_dynamic(file, [own, shared])
    assert (config.topic_defaults.retention_ms, config.topic_defaults.segment_bytes) == (5, 20)
    assert described(config, "segment.bytes").source is Source.DYNAMIC_BROKER_CONFIG
    assert described(config, "retention.ms", retention_ms="9").origins == (
        Origin("retention.ms", "9", Source.DYNAMIC_TOPIC_CONFIG),
        Origin("log.retention.ms", "5", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        Origin("log.retention.minutes", "7", Source.STATIC_BROKER_CONFIG),
    )
    assert with_dynamic(config, []).topic_defaults == file.topic_defaults


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        (
            "log.dir",
            "/e",
            "log.dir cannot be changed while a broker runs: change its file, and restart it.",
        ),
        (
            "log.retention.hours",
            "1",
            "log.retention.hours cannot be changed while a broker runs: use log.retention.ms.",
        ),
        (
            "log.flush.scheduler.interval.ms",
            "1",
            "log.flush.scheduler.interval.ms cannot be changed while a broker runs: change",
        ),
        ("log.retention.msec", "1", "is not a setting: did you mean log.retention.ms?"),
        ("remote.log.storage.system.enable", "true", "cannot be set: kdist keeps a log on its own"),
        ("log.segment.bytes", "x", "log.segment.bytes is 'x', but must be an integer from 14"),
        ("log.cleaner.max.compaction.lag.ms", "4", "min.compaction.lag.ms is above"),
    ],
)
def test_a_setting_that_is_not_dynamic_is_refused(name: str, value: str, fault: str) -> None:
    dynamic = layer_of(Source.DYNAMIC_BROKER_CONFIG, {name: value})
    with pytest.raises(ConfigError, match=re.escape(fault)):
        with_dynamic(broker(log_cleaner_min_compaction_lag_ms="5"), [dynamic])


def test_settings_ignored_in_a_file_are_ignored_as_dynamic_ones_too() -> None:
    dynamic = layer_of(Source.DYNAMIC_BROKER_CONFIG, {"log.cleaner.threads": "2"})
    assert with_dynamic(broker(), [dynamic]).topic_defaults == broker().topic_defaults


def test_a_setting_is_described_with_all_the_places_it_could_be_from() -> None:
    config = broker(log_retention_hours="2", log_retention_ms="5")
    assert described(config, "retention.ms", retention_ms="9")[1:] == (
        "retention.ms",
        "9",
        Source.DYNAMIC_TOPIC_CONFIG,
        (
            Origin("retention.ms", "9", Source.DYNAMIC_TOPIC_CONFIG),
            Origin("log.retention.ms", "5", Source.STATIC_BROKER_CONFIG),
            Origin("log.retention.hours", "2", Source.STATIC_BROKER_CONFIG),
        ),
    )


def test_hours_are_described_in_the_settings_own_unit() -> None:
    row = described(broker(log_retention_hours="2"), "retention.ms")
    assert (row.text, row.source) == ("7200000", Source.STATIC_BROKER_CONFIG)


def test_a_topics_setting_is_described_under_the_name_that_its_broker_has_for_it() -> None:
    names = [row.name for row in broker().describe()]
    assert "log.retention.ms" in names
    assert "retention.ms" not in names
    assert len(names) == len(set(names))


def test_a_setting_that_is_not_set_is_described_as_none() -> None:
    rack = next(row for row in broker().describe() if row.name == "broker.rack")
    assert (rack.text, rack.source) == (None, Source.DEFAULT_CONFIG)


def test_every_setting_is_described_as_what_it_resolved_to() -> None:
    config = broker(log_segment_bytes="99999999", log_cleanup_policy="compact, delete")
    for row in config.describe_topic({"flush.ms": "8"}):
        value = getattr(config.topic({"flush.ms": "8"}), row.row.attribute)
        assert row.text is not None
        assert row.row.read(row.text) == value


def test_faults_of_overrides_name_their_topic_and_come_together() -> None:
    overrides = {"segment.bytes": "1", "segment.byte": "1", "remote.storage.enable": "true"}
    with pytest.raises(ConfigError) as caught:
        resolve_topic(broker().layers, overrides, "topic 'logs'")
    assert caught.value.faults == (
        "segment.byte is not a setting: did you mean segment.bytes (topic 'logs')?",
        "remote.storage.enable cannot be set: kdist keeps a log on its own disk only"
        " (topic 'logs').",
        "segment.bytes is '1', but must be an integer from 14 to 2147483647 (topic 'logs').",
    )


@pytest.mark.parametrize(
    ("name", "harmless", "promise"),
    [
        ("remote.storage.enable", "false", "true"),
        ("remote.log.copy.disable", "false", "true"),
        ("remote.log.delete.on.disable", "false", "true"),
        ("local.retention.ms", "-2", "1000"),
        ("local.retention.bytes", " -2 ", "-1"),
        ("ssl.keystore.password", "", "hunter2"),
        ("zookeeper.ssl.crl.enable", "false", "true"),
        ("process.roles", "", "broker"),
    ],
)
def test_a_refused_setting_is_ignored_where_it_asks_for_nothing(
    name: str, harmless: str, promise: str
) -> None:
    """Tools write every setting, at its default too."""
    given = LEAST | {name: harmless}
    assert any(f"{name} is ignored: " in each for each in broker_from(given).warnings)
    assert broker().topic({name: harmless}) == broker().topic({})
    with pytest.raises(ConfigError, match=f"{name} cannot be set"):
        broker_from(LEAST | {name: promise})
    with pytest.raises(ConfigError, match=f"{name} cannot be set"):
        broker().topic({name: promise})


def test_a_topic_does_not_know_the_brokers_names() -> None:
    with pytest.raises(ConfigError, match=r"did you mean segment\.bytes"):
        broker().topic({"log.segment.bytes": "1000"})


@settings
class KeySettings(Settings):
    """Settings as a package with a secret would declare them."""

    password: secret = setting("key.password", subject="Keys", default="", doc="A password.")


def test_a_secret_is_hidden_wherever_it_is_described() -> None:
    layers = (Layer(Source.STATIC_BROKER_CONFIG, {"key.password": Given("hunter2", "f")}),)
    assert resolve(KeySettings.TABLE, layers).values == {"password": "hunter2"}
    (row,) = describe(KeySettings.TABLE, layers)
    assert row.text == HIDDEN
    assert {origin.text for origin in row.origins} == {HIDDEN}
