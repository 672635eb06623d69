"""The `kdist` data source before it reads: options, offsets, ranges, columns, workers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from kdist.client.cluster import Address
from kdist.client.cluster import Cluster as Brokers
from kdist.client.consumer.batch import Batch
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.records.batch import HEADER, read_header
from kdist.records.build import build_batch
from kdist.spark.columns import SCHEMA, to_arrow
from kdist.spark.options import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTime,
    AtTimes,
    Everywhere,
    Selection,
    read_options,
    wants_headers,
)
from kdist.spark.ranges import Range, cut
from kdist.spark.resolving import Resolver, plan_read
from kdist.spark.security_file import read_security
from kdist.spark.source import KdistDataSource, Task
from kdist.spark.workers import choose_python
from tests.simulator.cluster import PORT, Cluster, create, produce

BOOTSTRAP = {"kafka.bootstrap.servers": "b1:9092,b2:9092"}
CLICKS = {**BOOTSTRAP, "subscribe": "clicks"}

CLICKS_0 = TopicPartition("clicks", 0)


def ranges(**options: str) -> list[Range]:
    """The offsets to read of a topic with three records."""
    cluster = Cluster()
    given = {"kafka.bootstrap.servers": f"m1:{PORT}", "subscribe": "clicks", **options}

    async def scenario() -> list[Range]:
        await cluster.started()
        client = await cluster.client()
        await client.negotiate()
        await create(client, "clicks")
        await produce(client, "clicks", b"1", b"2", b"3")
        brokers = Brokers(
            cluster.network.host("driver"), [Address("m1", PORT)], ClientSettings("spark")
        )
        return await Resolver(brokers, read_options(given)).ranges()

    found: list[Range] = cluster.run(scenario())
    return found


def at(offset: int) -> str:
    return f'{{"clicks": {{"0": {offset}}}}}'


WHOLE = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6).map(
    lambda rows: [
        Range(TopicPartition("t", number), start, start + size)
        for number, (start, size) in enumerate(rows)
    ]
)

PARTITION = TopicPartition("clicks", 3)


def compacted() -> bytes:
    """Offsets 10 to 20, of which only the first is left."""
    data = build_batch([b"first"], timestamp_ms=1_000, base_offset=10)
    HEADER.pack_into(data, 0, *read_header(data)._replace(last_offset_delta=10))
    return bytes(data)


def batch_of(data: bytes, start: int = 0) -> Batch:
    return Batch(PARTITION, read_header(data), data, 0, start)


def chosen(master: str, python: str) -> str:
    context: Any = SimpleNamespace(master=master, pythonExec=python)
    choose_python(context)
    return str(context.pythonExec)


def test_by_default_a_topic_is_read_from_its_first_record_to_its_last() -> None:
    options = read_options(CLICKS)
    assert options.selection == Selection(topics=("clicks",))
    assert (options.start, options.end) == (Everywhere(EARLIEST), Everywhere(LATEST))
    assert (options.fail_on_data_loss, options.include_headers) == (True, False)
    assert (options.partitions_min, options.records_max, options.consumer) == (None, None, {})


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix"]
)
def test_options_for_streams_and_groups_are_ignored_in_a_batch_read(name: str) -> None:
    assert read_options({**CLICKS, name: "10"}) == read_options(CLICKS)


def test_option_names_are_case_insensitive() -> None:
    given = {**BOOTSTRAP, "SUBSCRIBEPATTERN": "click.*", "includeheaders": "TRUE"}
    options = read_options(given)
    assert options.selection == Selection(pattern="click.*")
    assert options.include_headers
    assert wants_headers(given)


def test_partitions_offsets_and_times_are_read_from_json() -> None:
    options = read_options(
        {
            **BOOTSTRAP,
            "assign": '{"clicks": [1, 0]}',
            "startingOffsets": '{"clicks": {"0": 23, "1": -2}}',
            "endingOffsetsByTimestamp": '{"clicks": {"0": 1000, "1": 2000}}',
        }
    )
    first, second = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
    assert options.selection.partitions == (first, second)
    assert options.start == AtOffsets({first: 23, second: EARLIEST})
    assert options.end == AtTimes({first: 1000, second: 2000})


def test_a_time_for_all_overrides_times_by_partition_which_override_offsets() -> None:
    given = {
        **CLICKS,
        "startingTimestamp": "1795003200000",
        "startingOffsetsByTimestamp": '{"clicks": {"0": 6}}',
        "startingOffsets": "earliest",
    }
    assert read_options(given).start == AtTime(1_795_003_200_000)
    del given["startingTimestamp"]
    assert read_options(given).start == AtTimes({TopicPartition("clicks", 0): 6})


def test_a_setting_of_the_consumer_keeps_kafkas_name() -> None:
    given = {"kafka.isolation.level": "read_committed", "kafka.fetch.max.bytes": "1048576"}
    assert read_options({**CLICKS, **given, "kafka.group.id": "ours"}).consumer == {
        "isolation_level": "read_committed",
        "fetch_max_bytes": 1 << 20,
    }


WRONG = [
    ({"subscribe": "clicks"}, "the option kafka.bootstrap.servers must be given, as host:port"),
    (
        {"kafka.bootstrap.servers": "b1", "subscribe": "clicks"},
        "'b1' is not a broker's address: give host:port",
    ),
    (
        BOOTSTRAP,
        "nothing says what to read: give one of assign, subscribe and subscribePattern",
    ),
    (
        {**CLICKS, "subscribePattern": "c.*"},
        "subscribe and subscribePattern are given together: give one of assign, subscribe and"
        " subscribePattern",
    ),
    ({**BOOTSTRAP, "subscribe": " , "}, "subscribe names no topic"),
    (
        {**BOOTSTRAP, "subscribe": "cli cks"},
        "subscribe names the topic 'cli cks', which has a character other than ASCII letters,"
        " digits, '.', '_' and '-'",
    ),
    (
        {**BOOTSTRAP, "subscribePattern": "("},
        "subscribePattern is not a regular expression: missing ), unterminated subpattern at"
        " position 0",
    ),
    ({**BOOTSTRAP, "assign": "clicks"}, 'assign must be JSON like {"topic": [0, 1]}'),
    ({**BOOTSTRAP, "assign": '{"clicks": [-1]}'}, 'assign must be JSON like {"topic": [0, 1]}'),
    (
        {**CLICKS, "startingOffsets": "latest"},
        "startingOffsets cannot be latest: a batch would be empty",
    ),
    (
        {**CLICKS, "startingOffsets": '{"clicks": {"0": -1}}'},
        "startingOffsets of clicks-0 cannot be latest: a batch would be empty",
    ),
    (
        {**CLICKS, "endingOffsets": "earliest"},
        "endingOffsets cannot be earliest: a batch would be empty",
    ),
    (
        {**CLICKS, "endingOffsets": '{"clicks": {"0": -3}}'},
        "endingOffsets of clicks-0 is -3: offsets begin at 0",
    ),
    (
        {**CLICKS, "endingOffsets": "newest"},
        "endingOffsets is 'newest', and must be earliest, latest or JSON",
    ),
    (
        {**CLICKS, "startingOffsets": '{"clicks": [0]}'},
        'startingOffsets must be JSON like {"topic": {"0": 23}}',
    ),
    (
        {**CLICKS, "startingTimestamp": "yesterday"},
        "startingTimestamp is wrong: 'yesterday' is neither milliseconds nor ISO 8601",
    ),
    ({**CLICKS, "minPartitions": "0"}, "minPartitions is '0', and must be an integer from 1"),
    ({**CLICKS, "failOnDataLoss": "no"}, "failOnDataLoss is 'no', and must be true or false"),
    (
        {**CLICKS, "startingOffsetsByTimestampStrategy": "skip"},
        "startingOffsetsByTimestampStrategy is 'skip', and must be error or latest",
    ),
    (
        {**CLICKS, "startingOfsets": "earliest"},
        "the format kdist has no option startingofsets: did you mean startingOffsets?",
    ),
    (
        {**CLICKS, "kafka.auto.offset.reset": "latest"},
        "the option kafka.auto.offset.reset cannot be given: say where to begin with"
        " startingOffsets",
    ),
    (
        {**CLICKS, "kafka.fetch.max.byte": "1"},
        "the format kdist has no option kafka.fetch.max.byte: did you mean kafka.fetch.max.bytes?",
    ),
    (
        {**CLICKS, "kafka.fetch.max.bytes": "much"},
        "kafka.fetch.max.bytes is 'much', and must be an integer from 1 to 2147483647",
    ),
    (
        {**CLICKS, "kafka.security.protocol": "TLS"},
        "kafka.security.protocol is 'TLS', and must be one of PLAINTEXT, SSL, SASL_PLAINTEXT,"
        " SASL_SSL",
    ),
    (
        {**CLICKS, "kafka.security.protocol": "SASL_SSL"},
        "security_protocol is SASL_SSL, and needs sasl_mechanism",
    ),
    (
        {**CLICKS, "kafka.sasl.jaas.config": "of mona"},
        "the option kafka.sasl.jaas.config cannot be given: Spark shows options: put it into a"
        " file, and give that as securityFile",
    ),
    (
        {**CLICKS, "securityFile": "client.properties"},
        "securityFile is 'client.properties', and must be an absolute path",
    ),
    (
        {**CLICKS, "securityFile": "/client", "kafka.security.protocol": "SSL"},
        "securityFile is given: put security.protocol into it too",
    ),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG)
def test_a_wrong_option_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        read_options(given)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sasl.passwort=of mona\n", "has no setting 'sasl.passwort'"),
        ("security.protocol=SASL_SSL\nsasl.password=of mona\n", "needs sasl_mechanism"),
        ("group.id=g\n", "has no setting 'group.id'"),
    ],
)
def test_a_wrong_security_file_is_one_sentence_without_its_secrets(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence) as refused:
        read_security(str(file))
    assert str(refused.value).startswith(f"{file}: ")
    assert "of mona" not in str(refused.value)


def test_a_security_file_that_a_host_does_not_have_is_named() -> None:
    with pytest.raises(UserError, match="/nowhere/x cannot be read on this host"):
        read_security("/nowhere/x")


def test_no_option_carries_what_a_security_file_says(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    options = read_options({**CLICKS, "securityFile": str(file)})
    assert options.security_file == str(file)
    assert options.consumer == {}


def test_tls_without_secrets_needs_no_file() -> None:
    given = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/ca.pem"}
    found = read_options({**CLICKS, **given}).consumer
    assert found == {"security_protocol": "SSL", "ssl_truststore_location": "/ca.pem"}


def test_a_read_goes_from_where_it_is_told_to_the_end() -> None:
    assert ranges() == [Range(CLICKS_0, 0, 3)]
    assert ranges(startingOffsets=at(1)) == [Range(CLICKS_0, 1, 3)]
    assert ranges(startingOffsets=at(3)) == []


def test_offsets_beyond_the_end_are_refused_unless_fail_on_data_loss_is_off() -> None:
    with pytest.raises(UserError) as refused:
        ranges(startingOffsets=at(4))
    assert str(refused.value) == (
        "clicks-0 is to be read from 4, but ends at 3 now; with failOnDataLoss false, nothing of it"
        " would be read"
    )
    assert ranges(startingOffsets=at(4), failOnDataLoss="false") == []
    with pytest.raises(UserError, match="clicks-0 is to be read from 4, but only up to 2"):
        ranges(startingOffsets=at(4), endingOffsets=at(2))


def test_a_time_after_the_last_record_may_start_at_the_end() -> None:
    late = {"startingTimestamp": "9999999999999"}
    assert ranges(**late, startingOffsetsByTimestampStrategy="latest") == []


@given(WHOLE, st.none() | st.integers(1, 40), st.none() | st.integers(1, 300))
def test_every_offset_is_in_one_range(
    whole: list[Range], partitions_min: int | None, records_max: int | None
) -> None:
    parts = cut(whole, partitions_min, records_max)
    found = [(part.partition, each) for part in parts for each in range(part.start, part.end)]
    wanted = [(each.partition, n) for each in whole for n in range(each.start, each.end)]
    assert sorted(found) == sorted(wanted)
    assert all(part.size > 0 for part in parts)
    if records_max is not None:
        assert all(part.size <= records_max for part in parts)


def test_large_partitions_are_split_into_more_parts_than_small_ones() -> None:
    large, small = Range(TopicPartition("t", 0), 0, 900), Range(TopicPartition("t", 1), 5, 105)
    assert [part.size for part in cut([large, small], 10)] == [100] * 10
    assert cut([large, small], 2) == [large, small]


def test_a_partition_is_never_split_into_more_parts_than_it_has_offsets() -> None:
    assert len(cut([Range(TopicPartition("t", 0), 7, 10)], 50)) == 3


def test_records_become_rows_of_their_columns() -> None:
    data = bytes(build_batch([b"a", None], [b"k", None], timestamp_ms=1_000, base_offset=7))
    (rows,) = to_arrow(PARTITION, [batch_of(data)], with_headers=False)
    assert rows.schema == SCHEMA
    found = rows.to_pydict()
    assert (found["value"], found["key"]) == ([b"a", None], [b"k", None])
    assert (found["topic"], found["partition"]) == (["clicks"] * 2, [3] * 2)
    assert found["offset"] == [7, 8]


def test_a_timestamp_that_spark_cannot_represent_is_null() -> None:
    times_ms = [1_000, 1_700_000_000_000_000_000, -1]
    data = bytes(build_batch([b"a"] * 3, timestamps=times_ms, timestamp_ms=0))
    (rows,) = to_arrow(PARTITION, [batch_of(data)], with_headers=False)
    assert rows.schema == SCHEMA
    assert rows.column("timestamp").cast("int64").to_pylist() == [1_000_000, None, -1_000]


def test_a_compacted_batch_without_a_record_in_the_range_gives_no_row() -> None:
    behind = batch_of(compacted(), start=15)
    before = batch_of(compacted()).part(11, 15)
    assert list(to_arrow(PARTITION, [behind, before], with_headers=True)) == []


def test_workers_on_this_machine_run_this_python_where_nothing_says_which() -> None:
    assert chosen("local[2]", "python3") == sys.executable
    assert chosen("spark://b1:7077", "python3") == "python3"


def test_a_python_without_kdist_is_refused_in_a_sentence(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    for python in (str(bare), str(tmp_path / "missing")):
        with pytest.raises(
            UserError, match=f"run {python}, .* set PYSPARK_PYTHON={sys.executable}"
        ):
            chosen("local[1]", python)
    assert chosen("spark://b1:7077", str(bare)) == str(bare)


def test_another_python_that_has_kdist_stays(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    assert chosen("local[1]", str(other)) == str(other)


def test_an_option_without_effect_is_told_and_one_that_has_an_effect_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def read(**options: str) -> None:
        source = KdistDataSource(CLICKS | {"kafka.client.id": "me", "minPartitions": "2"} | options)
        source.reader(from_arrow_schema(SCHEMA))

    read()
    assert not caplog.records
    read(**{"maxOffsetsPerTrigger": "100", "kafka.group.id": "reports"})
    (told,) = caplog.records
    assert told.getMessage() == (
        "without effect on a read of kdist: kafka.group.id, maxOffsetsPerTrigger"
    )


def test_a_read_is_planned_with_the_timeouts_of_its_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def refuse(addresses: object, client: object, retry_ms: float) -> NoReturn:
        asked.append((client, retry_ms))
        raise UserError("no broker answers")

    monkeypatch.setattr("kdist.spark.asking.cluster_at", refuse)
    own = {"kafka.request.timeout.ms": "5000", "kafka.default.api.timeout.ms": "7000"}
    for options in (CLICKS, CLICKS | own | {"kafka.client.id": "me"}):
        with pytest.raises(UserError, match="no broker answers"):
            plan_read(read_options(options))
    assert asked == [
        (ClientSettings("kdist-spark", request_timeout_ms=30_000), 60_000),
        (ClientSettings("me", request_timeout_ms=5_000), 7_000),
    ]


def test_a_sentence_has_one_frame_before_it_in_the_traceback_that_spark_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UserError("no broker answers")

    monkeypatch.setattr("kdist.spark.asking.cluster_at", refuse)
    monkeypatch.setattr("kdist.spark.reading.Consumer", refuse)
    reader = KdistDataSource(CLICKS).reader(from_arrow_schema(SCHEMA))
    wrong = KdistDataSource(CLICKS | {"starting": "now"})
    for call in (
        KdistDataSource({"includeHeaders": "perhaps"}).schema,
        lambda: wrong.reader(from_arrow_schema(SCHEMA)),
        reader.partitions,
        lambda: list(reader.read(Task(Range(CLICKS_0, 0, 1)))),
    ):
        with pytest.raises(UserError) as refused:
            call()
        frames = [each for each in refused.traceback if each.path.name != Path(__file__).name]
        assert [each.path.name for each in frames] == ["source.py"]
        assert refused.value.__suppress_context__
