"""The options of the `kdist` data source: what they mean, and the error for each wrong one."""

from __future__ import annotations

import pytest

from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.spark.offsets import EARLIEST, LATEST, AtOffsets, AtTime, AtTimes, Everywhere
from kdist.spark.options import Selection, read_options, wants_headers

BOOTSTRAP = {"kafka.bootstrap.servers": "b1:9092,b2:9092"}
CLICKS = {**BOOTSTRAP, "subscribe": "clicks"}


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
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"clicks": {"0": 6}}',
        "startingOffsets": "earliest",
    }
    assert read_options(given).start == AtTime(5)
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
        "startingTimestamp is 'yesterday', and must be an integer from 0",
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
        {**CLICKS, "kafka.security.protocol": "SSL"},
        "kafka.security.protocol is 'SSL': only PLAINTEXT is supported",
    ),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG)
def test_a_wrong_option_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        read_options(given)
    assert str(refused.value) == sentence
