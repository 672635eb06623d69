"""The files of a broker, a mirror and a load: settings, or one error with every fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.agent import load_agent
from kdist.config.broker_config import BROKER_NAMES, BROKER_TABLE, TOPIC_NAMES
from kdist.config.faults import ConfigError
from kdist.config.foreign import TABLE, find_foreign
from kdist.config.kinds import show_text
from kdist.config.load import broker_from, load_broker
from kdist.config.load_job import Step, load_job
from kdist.config.mirror import load_mirror
from kdist.config.texts import escape_properties
from kdist.config.topic import TopicSettings
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


FORMAT = Path(__file__).parents[3] / "docs/formats/load-output.md"
SMALL = "bootstrap.servers=b1:9092\ntopics=clicks,ops.host\noutput=/data\n"


def faults(more: str, text: str = SMALL) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        load_job(text + more, "job")
    return refused.value.faults


GOOD = """\
# comment
mirror.http.address=[::1]:9392
mirror.buffer.bytes=1048576
flow.dc1-to-dc2.source=k2:9092, k3:9092
flow.dc1-to-dc2.target=k4:9092
flow.dc1-to-dc2.topics=flights,ops\\\\..*
flow.dc1-to-dc2.prefix=dc1.
flow.b.source=k2:9092
flow.b.target=k4:9092
flow.b.blacklist=x.*
flow.b.start=latest
"""


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


def test_every_default_written_out_changes_nothing() -> None:
    of_topics = [row for row in TopicSettings.TABLE if row.broker_names]
    optional = [row for row in (*BROKER_TABLE, *of_topics) if not row.is_required]
    texts = {row.broker_names[0].name: show_text(row.default) for row in optional}
    lines = [escape_properties(*each) for each in (texts | LEAST).items()]
    everything, least = load_broker("\n".join(lines), "f"), load_broker(LEAST_TEXT, "f")
    assert len(everything.layers[0].given) == len(BROKER_TABLE) + len(of_topics)
    assert (everything.broker, everything.storage) == (least.broker, least.storage)
    assert everything.topic_defaults == least.topic_defaults == TopicSettings()
    assert not least.warnings


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
        "ssl.keystore.password cannot be set: PEM has no such password: that of an encrypted key is"
        " ssl.key.password (f, line 4).",
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


def test_settings_that_promise_something_are_refused_and_thread_settings_are_ignored() -> None:
    refused = ("zookeeper.ssl.ocsp.enable", "sasl.login.class", "process.roles")
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


def test_a_topics_own_setting_goes_before_the_jobs() -> None:
    found = load_job(
        SMALL
        + "event.time.field=at\ntopic.ops.host.event.time.field=timestamp_ms\n"
        + "topic.ops.host.format=bytes\n",
        "job",
    )
    assert found.topics["clicks"].event_time_field == "at"
    assert found.topics["clicks"].format == "json"
    assert found.topics["ops.host"].event_time_field == "timestamp_ms"
    assert found.topics["ops.host"].format == "bytes"


def test_an_ambiguous_name_belongs_to_the_longer_setting() -> None:
    found = load_job(SMALL + "topic.clicks.event.time.format=s\n", "job")
    assert found.topics["clicks"].event_time_format == "s"
    assert found.topics["clicks"].format == "json"


def test_spark_settings_are_passed_to_spark_except_its_master() -> None:
    found = load_job(SMALL + "spark.master=local[3]\nspark.driver.memory=1g\n", "job")
    assert found.job.spark_master == "local[3]"
    assert found.spark == {"spark.driver.memory": "1g"}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("outputs=/x\n", "outputs is not a setting: did you mean output (job, line 4)?"),
        (
            "topic.views.format=json\n",
            "topic.views.format is about a topic that is not in topics (job, line 4).",
        ),
        (
            "topic.clicks.form=json\n",
            "topic.clicks.form does not end in a topic's setting (job, line 4).",
        ),
        (
            "topic.clicks.format=xml\n",
            "topic.clicks.format is 'xml', but must be one of json, bytes (job, line 4).",
        ),
        ("format=xml\n", "format is 'xml', but must be one of json, bytes (job, line 4)."),
        ("event.time.zone=Mars\n", "event.time.zone is 'Mars', which is not a time zone (job)."),
        *(
            (
                f"event.time.format={form}\n",
                f"event.time.format is {form!r}, which has no year: the field must have the date"
                " (job).",
            )
            for form in ("HH:mm", "dd/MM HH:mm", "[yyyy-MM-dd[ ]]HH:mm", "HH:mm 'year'")
        ),
        (
            "security.file=client.properties\n",
            "security.file is 'client.properties', but must be an absolute path (job).",
        ),
        (
            "name=a b\n",
            "name is 'a b', but must be letters, digits, '.', '_' and '-' (job).",
        ),
    ],
)
def test_a_mistake_is_one_sentence(more: str, sentence: str) -> None:
    assert faults(more) == (sentence,)


def test_a_pattern_with_a_year_is_a_format_of_event_times() -> None:
    for form in ("dd/MM/yyyy HH:mm", "uuuu-DDD[ HH:mm]", "yyyy-MM-dd'T'HH:mm"):
        found = load_job(f"{SMALL}event.time.format={form}\n", "job")
        assert found.topics["clicks"].event_time_format == form


def test_all_mistakes_in_the_file_of_a_load_are_reported_at_once() -> None:
    text = "bootstrap.servers=b1\ntopics=a,a,b c\noutput=data\n"
    assert faults("", text) == (
        "bootstrap.servers has 'b1', but must have host:port (job).",
        "topics has 'b c', which has a character other than ASCII letters, digits, '.', '_' and"
        " '-' (job).",
        "topics names a topic twice (job).",
        "output is 'data', but must be an absolute path (job).",
    )


def test_missing_required_settings_are_reported() -> None:
    assert [each.partition(" must be given")[0] for each in faults("", "")] == [
        "bootstrap.servers",
        "topics",
        "output",
    ]


def test_the_page_of_the_format_tells_every_step_of_a_commit() -> None:
    _, _, steps = FORMAT.read_text().partition("## The steps of a commit")
    assert tuple(re.findall(r"^\| `([a-z-]+)` \|", steps, re.MULTILINE)) == get_args(Step)


def test_a_file_has_settings_of_the_process_and_of_each_flow() -> None:
    config = load_mirror(GOOD, "m.properties")
    first, second = config.flows
    assert config.mirror.http_address == "[::1]:9392"
    assert (first.name, first.group) == ("dc1-to-dc2", "kdist-mirror-dc1-to-dc2")
    assert first.wants("ops.host")
    assert not first.wants("opsXhost")
    assert first.renamed("flights") == "dc1.flights"
    assert first.settings.start == "earliest"
    assert (second.settings.start, second.renamed("t")) == ("latest", "t")
    assert second.wants("anything")
    assert not second.wants("xylophone")
    assert config.flow("b") is second
    assert config.flow("c") is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("mirror.buffer.bytes=1048576", "mirror.bufer.bytes=1"),
            "mirror.bufer.bytes is not a setting: did you mean mirror.buffer.bytes"
            " (m.properties, line 3)?",
        ),
        (
            ("mirror.buffer.bytes=1048576", "mirror.buffer.bytes=12"),
            "mirror.buffer.bytes is '12', but must be an integer from 1048576"
            " to 9223372036854775807 (m.properties, line 3).",
        ),
        (
            ("[::1]:9392", "here"),
            "mirror.http.address is 'here', but must be host:port (m.properties, line 2).",
        ),
        (
            ("flow.b.source=k2:9092\n", ""),
            "flow.b.source must be given: brokers of the cluster that is read, as"
            " `host1:9092,host2:9092` (m.properties).",
        ),
        (
            ("flow.b.start=latest", "flow.b.start=middle"),
            "flow.b.start is 'middle', but must be one of earliest, latest"
            " (m.properties, line 11).",
        ),
        (
            ("flow.b.start", "flow.b.starts"),
            "flow.b.starts is not a setting: did you mean flow.b.start (m.properties, line 11)?",
        ),
        (
            ("flow.b.start", "flow.b b.start"),
            "flow.b is not a setting (m.properties, line 11).",
        ),
        (
            ("flow.b.start", "flow.b!.start"),
            "flow.b!.start: a flow's name has up to 100 letters, digits, '_' and '-'"
            " (m.properties, line 11).",
        ),
        (
            ("flow.b.blacklist=x.*", "flow.b.blacklist=x("),
            "flow.b.blacklist has 'x(', which is not a regular expression: missing ), unterminated"
            " subpattern at position 1 (m.properties, line 10).",
        ),
        (
            ("flow.b.blacklist=x.*", "flow.b.topics="),
            "flow.b.topics is empty: give at least one pattern (m.properties, line 10).",
        ),
        (
            ("flow.b.target=k4:9092", "flow.b.target=k4"),
            "flow.b.target has 'k4', but must have host:port (m.properties, line 9).",
        ),
        (
            ("flow.b.target=k4:9092", "flow.b.target=k2:9092"),
            "flow.b.target is the source too: without a prefix a topic would be mirrored into"
            " itself (m.properties, line 9).",
        ),
        (
            ("prefix=dc1.", "prefix=dc1/"),
            "flow.dc1-to-dc2.prefix is 'dc1/', which no topic's name can begin with"
            " (m.properties, line 7).",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_key_and_line(
    change: tuple[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_mirror(GOOD.replace(*change, 1), "m.properties")
    assert caught.value.faults == (sentence,)


def test_a_setting_that_is_given_by_both_of_its_names_is_refused() -> None:
    text = "flow.b.source=a:1\nflow.b.target=b:1\nflow.b.whitelist=x\nflow.b.topics=y\n"
    with pytest.raises(ConfigError) as raised:
        load_mirror(text, "m.properties")
    assert str(raised.value) == (
        "flow.b.whitelist is another name for flow.b.topics: give only one (m.properties, line 3)."
    )


def test_all_mistakes_in_the_file_of_a_mirror_are_reported_at_once() -> None:
    text = GOOD.replace("start=latest", "start=middle").replace("bytes=1048576", "bytes=x")
    with pytest.raises(ConfigError) as caught:
        load_mirror(text, "m.properties")
    assert len(caught.value.faults) == 2


def test_a_file_without_a_flow_is_refused() -> None:
    with pytest.raises(ConfigError, match="a mirror needs a flow"):
        load_mirror("mirror.buffer.bytes=1048576\n", "m.properties")


@pytest.mark.parametrize("spoilt", ["otput=/data", "output=", "topics=", "frmat=x", "format=x"])
def test_a_mistake_does_not_hide_the_others(spoilt: str) -> None:
    text = f"bootstrap.servers=b1\nname=a b\nevent.time.zone=Mars\n{spoilt}\n"
    said = "\n".join(faults("", text))
    for name in ("b1", "name is", "event.time.zone is", spoilt.partition("=")[0]):
        assert name in said
    assert "topic.x.format" in "\n".join(faults(f"topic.x.format=json\n{spoilt}\n"))


@pytest.mark.parametrize("spoilt", ["sorce=k2:9092", "source=", "start=never", "target=", "prfx=x"])
def test_a_mistake_does_not_hide_the_others_of_its_flow_and_of_the_file(spoilt: str) -> None:
    text = f"""\
mirror.http.address=nowhere
flow.f.{spoilt}
flow.f.topics=a(,b
flow.g.source=k2
flow.g.target=k4:9092
flow.g.topics.exclude=x[
mirror.bufer.bytes=1
"""
    with pytest.raises(ConfigError) as refused:
        load_mirror(text, "m")
    said = "\n".join(refused.value.faults)
    for name in (
        *("mirror.http.address", f"flow.f.{spoilt.partition('=')[0]}", "flow.f.topics has 'a('"),
        *("flow.g.source has 'k2'", "flow.g.topics.exclude has 'x['", "mirror.bufer.bytes"),
    ):
        assert name in said


SECURED = """
flow.b.source.security.protocol=SASL_SSL
flow.b.source.sasl.mechanism=PLAIN
flow.b.source.sasl.username=reader
flow.b.source.sasl.password=secret of the source
flow.b.target.security.protocol=SSL
flow.b.target.ssl.keystore.key=secret of the target
"""


def test_each_end_of_a_flow_is_secured_by_settings_of_its_own() -> None:
    first, second = load_mirror(GOOD + SECURED, "m.properties").flows
    assert second.source_security.sasl_password == "secret of the source"
    assert second.target_security.security_protocol == "SSL"
    assert second.target_security.ssl_keystore_key == "secret of the target"
    assert second.target_security.sasl_password is None
    assert first.source_security.security_protocol == "PLAINTEXT"


def test_no_secret_of_a_flow_is_shown() -> None:
    assert "secret of" not in repr(load_mirror(GOOD + SECURED, "m.properties"))


def test_a_misspelt_security_setting_of_a_flow_is_named_with_its_cluster() -> None:
    with pytest.raises(ConfigError) as caught:
        load_mirror(GOOD + "flow.b.target.security.protocoll=SSL\n", "m.properties")
    (fault,) = caught.value.faults
    assert "did you mean flow.b.target.security.protocol" in fault


def test_an_agent_has_the_security_settings_of_all_clients_under_their_names() -> None:
    text = "bootstrap.servers=b1:9092\nsecurity.protocol=SASL_SSL\nsasl.password=secret of it\n"
    found = load_agent(text, "agent.properties")
    assert (found.security_protocol, found.sasl_password) == ("SASL_SSL", "secret of it")
    assert "secret of it" not in repr(found)
