"""The connector's pure parts: settings, subscriptions, Algorithm 1."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.client.classic.connector import assignment, connector, subscription
from kdist.client.classic.connector.assignment import assign, ordered
from kdist.client.classic.connector.settings import read_settings
from kdist.client.classic.connector.subscription import (
    Blacklist,
    Filtered,
    Topics,
    Whitelist,
    read_subscription,
)
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.zk.cluster_values import ConsumerRegistration

LEAST = {"group.id": "g", "zookeeper.connect": "localhost"}

NAMES = st.text("abz-09", min_size=1, max_size=4)
GROUPS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.sets(NAMES, min_size=1, max_size=5), min_size=1
)
COUNTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 9))


def test_text_from_a_properties_file_is_parsed_into_values() -> None:
    given_texts = {"auto.commit.enable": "false", "auto.commit.interval.ms": "100"}
    found = read_settings(LEAST | given_texts | {"queued_max_message_chunks": 5})
    assert (found.auto_commit_enable, found.auto_commit_interval_ms) == (False, 100)
    assert found.queued_chunks_max == 5
    assert found.consumer_id is None


def test_an_old_settings_file_is_accepted_as_it_is() -> None:
    old = {"offsets.storage": "zookeeper", "num.consumer.fetchers": "4"}
    assert read_settings(LEAST | old) == read_settings(LEAST)
    with pytest.raises(
        UserError, match=r"offsets\.storage is 'kafka', and must be one of zookeeper"
    ):
        read_settings(LEAST | {"offsets.storage": "kafka"})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"grup.id": "g"}, "has no setting 'grup.id': did you mean group.id?"),
        ({"auto.offset.reset": "earliest"}, "must be one of smallest, largest"),
        ({"auto.commit.enable": 1}, "must be True or False"),
        ({"consumer.timeout.ms": -2}, "must be an integer from -1 to 2147483647"),
        ({"group.id": "a/b"}, "group.id 'a/b' has a character other than"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        read_settings(LEAST | wrong)
    assert sentence in str(refused.value)


def test_a_missing_required_setting_is_named() -> None:
    with pytest.raises(UserError, match=r"a connector needs group\.id"):
        read_settings({"zookeeper.connect": "localhost"})
    with pytest.raises(UserError, match="a dict of settings, not 7"):
        read_settings(7)  # type: ignore[arg-type]


def test_range_assignments_are_those_of_the_old_consumer() -> None:
    # Kafka 0.8's `ZookeeperConsumerConnector`: 5 partitions, consumers of 2 and of 1 streams.
    found = assign("range", {"t": [0, 1, 2, 3, 4]}, {"t": ["c2-0", "c1-1", "c1-0"]})
    assert [found[TopicPartition("t", n)] for n in range(5)] == [
        *("c1-0", "c1-0", "c1-1", "c1-1", "c2-0")
    ]


def test_streams_are_sorted_by_their_text() -> None:
    names = [f"c-{number}" for number in range(11)]
    found = assign("range", {"t": list(range(11))}, {"t": names})
    assert found[TopicPartition("t", 2)] == "c-10"


def test_round_robin_goes_by_the_partitions_hashes() -> None:
    # Java's hashes of "[s,0]", "[s,1]", "[t,0]", "[t,1]" grow in this order.
    found = assign(
        "roundrobin", {"t": [0, 1], "s": [0, 1]}, {"t": ["a-0", "b-0"], "s": ["a-0", "b-0"]}
    )
    assert found == {
        TopicPartition("s", 0): "a-0",
        TopicPartition("s", 1): "b-0",
        TopicPartition("t", 0): "a-0",
        TopicPartition("t", 1): "b-0",
    }


def test_round_robin_needs_members_with_equal_subscriptions() -> None:
    with pytest.raises(UserError, match="these differ in s, t"):
        assign("roundrobin", {"t": [0], "s": [0]}, {"t": ["a-0"], "s": ["a-0", "b-0"]})


@given(COUNTS, GROUPS)
def test_every_partition_that_someone_wants_has_one_owner(
    counts: dict[str, int], streams: dict[str, set[str]]
) -> None:
    found = assign("range", {topic: range(n) for topic, n in counts.items()}, streams)
    wanted = {TopicPartition(t, n) for t in streams for n in range(counts.get(t, 0))}
    assert found.keys() == wanted
    for topic, names in streams.items():
        shares = [
            sum(owner == name for key, owner in found.items() if key.topic == topic)
            for name in sorted(names)
        ]
        assert max(shares) - min(shares) <= 1
        assert shares == sorted(shares, reverse=True), "the first get one more"


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 4)), st.integers(1, 5))
def test_partitions_of_one_broker_stay_together(preferred: dict[int, int], streams: int) -> None:
    partitions = ordered(preferred, by_broker=True)
    names = [f"c{number}" for number in range(streams)]
    found = assign("range", {"t": partitions}, {"t": names})
    # In the order by broker each stream has a run, so it meets few brokers: those of its run.
    owners = [found[TopicPartition("t", number)] for number in partitions]
    assert owners == sorted(owners)
    assert [preferred[number] for number in partitions] == sorted(preferred.values())
    assert ordered(preferred, by_broker=False) == sorted(preferred)


def test_filters_read_commas_as_or_and_match_whole_names() -> None:
    white = Whitelist(' "clicks, view.*" ')
    assert white.expression == "clicks|view.*"
    assert [white.allows(name) for name in ("clicks", "views", "clicks2")] == [True, True, False]
    black = Blacklist("test.*")
    assert [black.allows(name) for name in ("test1", "clicks", "__consumer_offsets")] == [
        *(False, True, False)
    ]
    assert black.allows("__consumer_offsets", exclude_internal=False)


def test_an_invalid_filter_is_refused() -> None:
    with pytest.raises(UserError, match="is not a regular expression"):
        Whitelist("(")
    with pytest.raises(UserError, match="must be text, not 7"):
        Whitelist(7)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"a Whitelist or a Blacklist, not 'clicks\.\*'"):
        Filtered("clicks.*", 1)  # type: ignore[arg-type]


def test_topics_are_given_with_their_streams() -> None:
    with pytest.raises(UserError, match=r"a dict of numbers of streams, not \['t'\]"):
        Topics(["t"])  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, "2", True])
def test_a_number_of_streams_is_one_or_more(count: int) -> None:
    with pytest.raises(UserError, match="must have 1 or more"):
        Topics({"t": count})
    with pytest.raises(UserError, match="must have 1 or more"):
        Filtered(Whitelist("t"), count)


def test_a_registration_says_what_its_consumer_wants() -> None:
    topics = ["clicks", "views", "test1"]

    def streams(pattern: str, counts: dict[str, int]) -> dict[str, int]:
        return read_subscription(ConsumerRegistration(counts, pattern, 0)).streams(topics)

    assert streams("static", {"clicks": 2, "gone": 1}) == {"clicks": 2}
    assert streams("white_list", {"clicks|views": 3}) == {"clicks": 3, "views": 3}
    assert streams("black_list", {"test.*": 1}) == {"clicks": 1, "views": 1}
    with pytest.raises(UserError, match="pattern 'grey_list'"):
        streams("grey_list", {"t": 1})


@pytest.mark.parametrize("module", [assignment, connector, subscription])
def test_the_examples_in_docstrings_are_true(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert (done.failed, done.attempted > 0) == (0, True)
