"""Every declared setting: its default, its bounds, what contradicts it, and the digest."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config import broker_rules, listener_rules, topic_rules
from kdist.config.addresses import Listener, parse_listener, parse_protocol_map
from kdist.config.broker_config import BROKER_CLASSES, BROKER_TABLE
from kdist.config.declare import Setting, Settings, Synonym, setting, settings, show_human
from kdist.config.faults import ConfigError, broken
from kdist.config.kinds import INT64_MAX, Kind, int32, int64, secret, show_text
from kdist.config.layers import Source, layer_of
from kdist.config.load import broker_from, load_broker, with_dynamic
from kdist.config.security import ACL_AUTHORIZER
from kdist.config.topic import TopicSettings

EVERY = (*BROKER_TABLE, *TopicSettings.TABLE)
WITH_DEFAULT = [row for row in EVERY if not row.is_required]
NUMBERS = [row for row in EVERY if row.shape.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE)]
CHOICES = [row for row in EVERY if row.shape.choices]


def name_of(row: Setting) -> str:
    return row.name


def row_named(name: str) -> Setting:
    return next(row for row in EVERY if row.name == name)


LEAST = {"broker.id": "1", "log.dir": "/d", "zookeeper.connect": "zk:2181"}
LISTENERS, ADVERTISED = "listeners", "advertised.listeners"
PROTOCOL_MAP, INTER_BROKER = "listener.security.protocol.map", "inter.broker.listener.name"

SCRAM = "SCRAM-SHA-512"
PLAIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="kdist"'
    ' password="hunter2" user_alice="hunter3";'
)
SECURE = {
    LISTENERS: "PLAINTEXT://:9092,IN://:9093",
    PROTOCOL_MAP: "PLAINTEXT:PLAINTEXT,IN:SASL_SSL",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.jaas.config": PLAIN,
    "ssl.keystore.location": "/etc/kdist/key.pem",
}

BROKEN_BY = {
    "directory_is_one": {"log.dir": "/d1,/d2"},
    "directory_is_absolute": {"log.dir": "logs"},
    "zookeeper_can_be_read": {"zookeeper.connect": "zk:port"},
    "zookeeper_stores_are_pem": {"zookeeper.ssl.truststore.type": "JKS"},
    "zookeeper_tls_is_enabled": {"zookeeper.ssl.keystore.location": "/etc/kdist/zk.pem"},
    "zookeeper_digest_is_not_shown_in_clear": {"zookeeper.digest.file": "/etc/kdist/zk"},
    "znodes_have_a_creator": {"zookeeper.set.acl": "true"},
    "listeners_can_be_read": {LISTENERS: "PLAINTEXT:9092"},
    "listeners_are_distinct": {LISTENERS: "PLAINTEXT://a:1,PLAINTEXT://a:2"},
    "advertised_listeners_exist": {ADVERTISED: "PLAINTEXT://0.0.0.0:9092"},
    "http_address_can_be_read": {"http.address": "localhost:http"},
    "http_address_is_no_listeners": {
        LISTENERS: "PLAINTEXT://:9092",
        "http.address": "127.0.0.1:9092",
    },
    "brokers_have_a_listener": {INTER_BROKER: "OUT"},
    "brokers_can_log_in": {LISTENERS: "SASL_PLAINTEXT://:1", "sasl.enabled.mechanisms": SCRAM},
    "addresses_have_numbers": {"max.connections.per.ip.overrides": "host:5"},
    "failures_are_told_before_the_close": {"connections.max.idle.ms": "100"},
    "follower_waits_within_its_timeout": {
        "replica.fetch.wait.max.ms": "20000",
        "replica.socket.timeout.ms": "10000",
    },
    "follower_waits_within_its_lag": {
        "replica.fetch.wait.max.ms": "20000",
        "replica.lag.time.max.ms": "10000",
    },
    "somebody_can_connect": {"max.connections": "1"},
    "session_timeouts_are_ordered": {"group.max.session.timeout.ms": "5"},
    "compaction_lags_are_ordered": {
        "log.cleaner.min.compaction.lag.ms": "2",
        "log.cleaner.max.compaction.lag.ms": "1",
    },
    "cleanup_policy_is_named_once": {"log.cleanup.policy": "delete,delete"},
}
OF_LISTENERS = {
    "stores_are_pem": {"ssl.keystore.type": "JKS"},
    "certificate_is_given": {"ssl.keystore.location": ""},
    "trust_is_given": {"listener.name.in.ssl.client.auth": "required"},
    "versions_are_enabled": {"ssl.enabled.protocols": ""},
    "mechanisms_are_enabled": {"sasl.enabled.mechanisms": ""},
    "passwords_are_not_in_clear": {PROTOCOL_MAP: "PLAINTEXT:PLAINTEXT,IN:SASL_PLAINTEXT"},
    "jaas_can_be_read": {"sasl.jaas.config": "com.example.Evil required;"},
    "plain_has_users": {"sasl.jaas.config": PLAIN.replace("user_", "not_")},
    "tokens_can_be_checked": {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.jaas.config": ""},
}
OF_TOPICS = {
    "throttled_replicas_are_named": {"leader.replication.throttled.replicas": "0:1,all"},
}
ODD = {
    "largest_batch_fits_a_request": {"socket.request.max.bytes": "1000"},
    "largest_batch_fits_a_segment": {"log.segment.bytes": "5000"},
    "segments_roll_before_retention": {"log.retention.ms": "300000"},
    "retention_holds_a_segment": {"log.retention.bytes": "0"},
    "jitter_is_within_the_age": {"log.roll.ms": "1000", "log.roll.jitter.ms": "1001"},
    "index_outlasts_its_segment": {"log.index.size.max.bytes": "1000"},
    "segments_have_index_entries": {
        "log.segment.bytes": "2000000",
        "log.index.interval.bytes": "2000001",
    },
    "commits_fit_a_batch": {"offset.metadata.max.bytes": "1048588"},
    "commits_fit_a_segment": {"offsets.topic.segment.bytes": "1048587"},
    "default_session_timeout_is_allowed": {"group.max.session.timeout.ms": "44999"},
    "flushes_are_checked_as_often_as_due": {"log.flush.interval.ms": "999"},
    "retention_is_checked_as_often_as_due": {
        "log.retention.ms": "299999",
        "log.roll.ms": "60000",
    },
    "producers_are_checked_as_often_as_due": {"producer.id.expiration.ms": "599999"},
    "offsets_are_checked_as_often_as_due": {"offsets.retention.minutes": "9"},
    "follower_backs_off_within_its_lag": {"replica.fetch.backoff.ms": "30000"},
    "names_on_the_page_are_shown_to_few": {
        "authorizer.class.name": ACL_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "http.address": ":9464",
    },
    "brokers_have_rights": {"authorizer.class.name": ACL_AUTHORIZER},
    "exposed_records_get_flushed": {"log.flush.before.expose": "true"},
}


def fault_of(given: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        broker_from(LEAST | given, "f")
    (fault,) = caught.value.faults
    return fault


FILE = "broker.id=1\nlog.dir=/data\nzookeeper.connect=zk:2181\nlog.retention.hours=2\n"


def digest(text: str) -> str:
    return load_broker(text, "x").digest()


@pytest.mark.parametrize("row", WITH_DEFAULT, ids=name_of)
def test_a_default_survives_a_round_trip_through_text(row: Setting) -> None:
    assert row.read(show_text(row.default)) == row.default


@pytest.mark.parametrize("row", NUMBERS, ids=name_of)
def test_a_number_may_be_its_bound_and_nothing_beyond(row: Setting) -> None:
    assert row.minimum is not None
    assert row.maximum is not None
    for bound in (row.minimum, row.maximum):
        assert row.read(str(bound)) == bound
    for beyond in (row.minimum - 1, row.maximum + 1):
        with pytest.raises(ValueError, match=f"from {row.minimum} to {row.maximum}"):
            row.read(str(beyond))


@pytest.mark.parametrize("row", CHOICES, ids=name_of)
def test_a_choice_is_one_of_the_words_and_no_other(row: Setting) -> None:
    for choice in row.shape.choices:
        assert show_text(row.read(f" {choice} ")) == choice
    nothing = "," if row.shape.kind is Kind.LIST else ""  # a list may be empty
    for wrong in (nothing, "shred", row.shape.choices[0].swapcase()):
        if row.shape.nullable and not wrong:
            continue
        with pytest.raises(ValueError, match=", ".join(row.shape.choices)):
            row.read(wrong)


@pytest.mark.parametrize("row", EVERY, ids=name_of)
def test_a_setting_says_what_it_is_in_one_sentence(row: Setting) -> None:
    assert row.doc.endswith(".")
    assert ". " not in row.doc
    assert row.doc[0].isupper() or row.doc.startswith(("kdist's own: ", "`"))
    assert row.subject


def test_no_name_is_given_to_two_settings() -> None:
    for table in (BROKER_TABLE, TopicSettings.TABLE):
        names = [row.name for row in table]
        assert len(set(names)) == len(names)


def test_a_unit_is_the_last_word_of_the_name() -> None:
    for row in EVERY:
        if row.unit:
            assert row.name.endswith(("." + row.unit, ".before.max.ms", ".after.max.ms"))


@pytest.mark.parametrize("cls", [*BROKER_CLASSES, TopicSettings])
def test_settings_are_frozen_and_have_slots(cls: type[Settings]) -> None:
    required = {row.attribute: "1" for row in cls.TABLE if row.is_required}
    made = cls(**required)
    assert not hasattr(made, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, cls.TABLE[0].attribute, 1)


@pytest.mark.parametrize("text", ["1_000", "0x10", "1.0", "1k", "", "\u0661"])
def test_an_integer_is_decimal_digits_as_in_java(text: str) -> None:
    with pytest.raises(ValueError, match="an integer"):
        row_named("num.partitions").read(text)


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "half", "1_0"])
def test_a_number_is_finite(text: str) -> None:
    with pytest.raises(ValueError, match="a number from 0 to 1"):
        row_named("min.cleanable.dirty.ratio").read(text)


@pytest.mark.parametrize("text", ["yes", "1", "", "tru"])
def test_a_boolean_is_true_or_false(text: str) -> None:
    with pytest.raises(ValueError, match="'true' or 'false'"):
        row_named("preallocate").read(text)
    assert row_named("preallocate").read("TRUE") is True


def test_nothing_means_none_where_none_is_allowed() -> None:
    assert row_named("broker.rack").read(" ") is None
    assert row_named("advertised.listeners").read("") == ()


def test_a_list_is_split_at_commas() -> None:
    assert row_named("cleanup.policy").read("compact, delete") == ("compact", "delete")
    assert row_named("cleanup.policy").read("") == ()


@given(st.integers(-1, 10**12))
def test_hours_count_in_milliseconds_but_minus_one_stays_a_word(hours: int) -> None:
    expected = hours if hours <= 0 else hours * 3_600_000
    assert row_named("retention.ms").read(str(hours), factor=3_600_000) == expected


def test_bounds_are_said_in_the_unit_of_the_name_that_was_used() -> None:
    most = INT64_MAX // 3_600_000
    for text in ("0", str(most + 1)):
        with pytest.raises(ValueError, match=f"from 1 to {most}$"):
            row_named("segment.ms").read(text, factor=3_600_000)
    with pytest.raises(ValueError, match=f"from -1 to {most}$"):
        row_named("retention.ms").read("-2", factor=3_600_000)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("segment.bytes", "1 GiB"),
        ("retention.ms", "7 days"),
        ("file.delete.delay.ms", "1 minute"),
        ("offsets.retention.minutes", "7 days"),
        ("flush.ms", "no limit"),
        ("retention.bytes", "-1"),
        ("max.message.bytes", "1048588 bytes"),
        ("zookeeper.session.timeout.ms", "18 seconds"),
        ("broker.rack", "not set"),
        ("broker.id", "must be given"),
        ("preallocate", "false"),
    ],
)
def test_a_default_is_said_as_people_say_it(name: str, said: str) -> None:
    row = row_named(name)
    assert show_human(row, row.default) == said


@settings
class KeySettings(Settings):
    """Settings as a package with a secret would declare them."""

    password: secret = setting("key.password", subject="Keys", default="", doc="A password.")
    size: int32 = setting("key.size", subject="Keys", default=1, doc="A size.")
    life_ms: int64 = setting(
        "key.life.ms",
        subject="Keys",
        synonyms=(Synonym("key.life.hours", 3_600_000),),
        doc="A life.",
    )


def test_a_secret_is_not_in_the_text_of_its_settings() -> None:
    assert "hunter2" not in repr(KeySettings(password="hunter2", life_ms=1))
    assert KeySettings.TABLE[0].is_secret


def test_a_setting_without_default_must_be_passed() -> None:
    with pytest.raises(TypeError, match="life_ms"):
        KeySettings()  # type: ignore[call-arg]


def test_an_integer_is_bounded_by_its_width() -> None:
    with pytest.raises(ValueError, match="from -2147483648 to 2147483647"):
        KeySettings.TABLE[1].read("2147483648")


def test_every_rule_has_an_example_that_breaks_it() -> None:
    refusing = {rule.__name__ for rule in (*broker_rules.REFUSES, *topic_rules.REFUSES)}
    assert refusing == {*BROKEN_BY, *OF_TOPICS}
    assert {rule.__name__ for rule in listener_rules.REFUSES} == set(OF_LISTENERS)
    warning = {rule.__name__ for rule in (*broker_rules.WARNS, *topic_rules.WARNS)}
    assert warning == set(ODD)


@pytest.mark.parametrize("rule", BROKEN_BY)
def test_a_contradiction_is_refused(rule: str) -> None:
    assert fault_of(BROKEN_BY[rule]).endswith("(f).")


@pytest.mark.parametrize("rule", OF_LISTENERS)
def test_a_contradiction_of_a_listener_is_refused(rule: str) -> None:
    fault = fault_of(SECURE | OF_LISTENERS[rule])
    assert fault.endswith("(f).")
    assert "hunter" not in fault
    assert not broker_from(SECURE | LEAST).warnings


@pytest.mark.parametrize("rule", OF_TOPICS)
def test_a_contradiction_of_a_topic_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError):
        broker_from(LEAST, "f").topic(OF_TOPICS[rule])


def test_no_broker_has_a_setting_that_only_topics_have() -> None:
    for name in (
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    ):
        assert name not in {each.name for each in broker_from(LEAST).describe()}
        assert name in {each.name for each in broker_from(LEAST).describe_topic({name: "0:1"})}
        assert f"{name} is not a setting" in fault_of({name: "*"})
        assert not broker_from(LEAST).topic({}).leader_replication_throttled_replicas


@pytest.mark.parametrize("rule", ODD)
def test_an_oddity_is_a_warning(rule: str) -> None:
    (warning,) = broker_from(LEAST | ODD[rule], "f").warnings
    assert warning.endswith("(f).")


def test_times_that_are_taken_at_their_word_are_no_oddity() -> None:
    given = {
        "log.roll.ms": "1000",
        "log.roll.jitter.ms": "1000",
        "log.segment.bytes": "2000000",
        "log.retention.bytes": "2000000",
        "log.index.size.max.bytes": "5904",
        "log.retention.ms": "300000",
        "log.flush.interval.ms": "1000",
        "group.min.session.timeout.ms": "45000",
        "group.max.session.timeout.ms": "45000",
        "http.address": "127.0.0.1:9092",
        LISTENERS: "PLAINTEXT://10.0.0.1:9092",
    }
    assert not broker_from(LEAST | given).warnings


def test_several_contradictions_are_reported_together() -> None:
    given = {"log.dir": "a,b", "zookeeper.connect": "", "log.cleanup.policy": "delete,delete"}
    with pytest.raises(ConfigError) as caught:
        broker_from(given | {"broker.id": "1"})
    assert len(caught.value.faults) == 4  # the directory is neither one nor absolute


@pytest.mark.parametrize(
    ("given", "claim"),
    [
        ({"zookeeper.connect": ""}, "zookeeper.connect is empty"),
        ({"zookeeper.connect": "zk1,,zk2"}, "zookeeper.connect 'zk1,,zk2': '' is not of the form"),
        ({"zookeeper.connect": "zk/a//b"}, "zookeeper.connect 'zk/a//b': /a//b is not a path"),
        ({LISTENERS: ""}, "listeners is empty"),
        ({LISTENERS: "A://:1"}, "listener.security.protocol.map has no protocol for A"),
        (
            {LISTENERS: "A://:1", PROTOCOL_MAP: "A:TLS"},
            "the protocol TLS of A is none of PLAINTEXT, SSL",
        ),
        ({PROTOCOL_MAP: "PLAINTEXT"}, "'PLAINTEXT' is not of the form NAME:PROTOCOL"),
        ({ADVERTISED: "PLAINTEXT://:9092"}, "advertised.listeners needs a host"),
        (
            {INTER_BROKER: "INSIDE"},
            "inter.broker.listener.name is INSIDE, which is not in listeners",
        ),
        (
            {ADVERTISED: "OUT://a:1", PROTOCOL_MAP: "PLAINTEXT:PLAINTEXT,OUT:PLAINTEXT"},
            "advertised.listeners has OUT, which is not in listeners",
        ),
        (
            {LISTENERS: "A://a:1,B://b:1", PROTOCOL_MAP: "A:PLAINTEXT,B:PLAINTEXT"},
            "listeners uses a name or a port twice",
        ),
    ],
)
def test_listeners_that_do_not_fit_together_are_refused(given: dict[str, str], claim: str) -> None:
    assert fault_of(given).startswith(claim)


def test_listeners_for_clients_and_for_brokers_fit_together() -> None:
    given = {
        LISTENERS: "client://:9092,INSIDE://10.0.0.1:9093",
        ADVERTISED: "CLIENT://kafka1.example.com:9092,INSIDE://10.0.0.1:9093",
        PROTOCOL_MAP: "CLIENT:PLAINTEXT, INSIDE:PLAINTEXT",
        INTER_BROKER: "INSIDE",
    }
    assert not broker_from(LEAST | given).warnings


def test_two_listeners_may_both_ask_the_kernel_for_a_port() -> None:
    given = {LISTENERS: "A://:0,B://:0", PROTOCOL_MAP: "A:PLAINTEXT,B:PLAINTEXT"}
    assert broker_from(LEAST | given).broker.listeners == ("A://:0", "B://:0")


def test_compacted_topics_and_endless_retention_have_no_retention_to_outlive() -> None:
    for topic in (
        TopicSettings(retention_ms=1, cleanup_policy=("compact",)),
        TopicSettings(retention_ms=-1),
    ):
        assert not list(broken(topic_rules.WARNS, topic, ""))


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://:9092", Listener("PLAINTEXT", "", 9092)),
        ("plaintext://host.example.com:0", Listener("PLAINTEXT", "host.example.com", 0)),
        ("A_1://[::1]:65535", Listener("A_1", "::1", 65535)),
    ],
)
def test_a_listener_is_a_name_a_host_and_a_port(text: str, listener: Listener) -> None:
    assert parse_listener(text) == listener
    assert parse_listener(str(listener)) == listener


@pytest.mark.parametrize("text", ["", "a:1", "A://a", "A://a:65536", "A://::1:9092", "A://a b:1"])
def test_an_invalid_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME://host:port"):
        parse_listener(text)


def test_protocols_are_known_by_upper_case_names() -> None:
    assert parse_protocol_map(["a:plaintext"]) == {"A": "PLAINTEXT"}


def test_clients_may_be_kept_out_where_brokers_have_a_listener_of_their_own() -> None:
    listeners = {LISTENERS: "A://:1,B://:2", PROTOCOL_MAP: "A:PLAINTEXT,B:PLAINTEXT"}
    config = broker_from(LEAST | listeners | {"max.connections": "0"})
    assert config.network.max_connections == 0


@pytest.mark.parametrize(
    "text",
    [
        "# Written by Ansible.\n\n" + FILE,
        "".join(reversed(FILE.splitlines(keepends=True))),
        FILE.replace("=", " = "),
        FILE.replace("log.retention.hours=2", "log.retention.ms=7200000"),
        FILE + "num.partitions=1\n",
    ],
    ids=["comments", "order", "spaces", "a synonym", "a default"],
)
def test_comments_order_and_spelling_do_not_change_it(text: str) -> None:
    assert digest(text) == digest(FILE)


@pytest.mark.parametrize(
    "line",
    ["num.partitions=2", "log.retention.hours=3", "broker.rack=r1", "zookeeper.connect=zk:2182"],
)
def test_another_value_changes_it(line: str) -> None:
    name = line.partition("=")[0]
    rest = [each for each in FILE.splitlines() if not each.startswith(f"{name}=")]
    assert digest("\n".join([*rest, line])) != digest(FILE)


def test_what_was_changed_while_the_broker_runs_does_not_count() -> None:
    loaded = load_broker(FILE, "x")
    changed = layer_of(Source.DYNAMIC_BROKER_CONFIG, {"log.retention.ms": "1"})
    assert with_dynamic(loaded, [changed]).digest() == loaded.digest()
