"""A consumer's settings: Kafka's names, checked, and one sentence for what is wrong."""

from __future__ import annotations

import pytest

from kdist.client.consumer.arguments import checked_topics, to_commit
from kdist.client.consumer.settings import ConsumerSettings, read_settings
from kdist.errors import UserError
from kdist.model import TopicPartition


def test_the_defaults_are_those_of_the_java_consumer() -> None:
    found = read_settings({})
    assert found == ConsumerSettings()
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (45_000, 3_000)
    assert (found.max_poll_records, found.auto_offset_reset) == (500, "latest")
    assert found.partition_assignment_strategy == ("range", "cooperative-sticky")


def test_names_with_dots_and_text_are_accepted_as_in_a_properties_file() -> None:
    found = read_settings({"group.id": " g", "max.poll.records": "7", "check_crcs": "false"})
    assert (found.group_id, found.max_poll_records, found.check_crcs) == (" g", 7, False)


def test_a_single_strategy_is_accepted_as_a_list_of_one() -> None:
    found = read_settings({"partition_assignment_strategy": "sticky"})
    assert found.partition_assignment_strategy == ("sticky",)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"grup_id": "g"}, "a consumer has no setting 'grup_id': did you mean group_id?"),
        ({"grup.id": "g"}, "a consumer has no setting 'grup.id': did you mean group.id?"),
        ({"zzz": 1}, "a consumer has no setting 'zzz'"),
        ({"group_id": ""}, "group_id is empty: give a name, or None for no group"),
        ({"group_id": 5}, "group_id is 5, and must be text or None"),
        ({"client_id": 5}, "client_id is 5, and must be text"),
        (
            {"auto_offset_reset": "smallest"},
            "auto_offset_reset is 'smallest', and must be one of earliest, latest, none",
        ),
        ({"enable_auto_commit": 1}, "enable_auto_commit is 1, and must be True or False"),
        (
            {"max_poll_records": 0},
            "max_poll_records is 0, and must be an integer from 1 to 2147483647",
        ),
        (
            {"fetch_min_bytes": True},
            "fetch_min_bytes is True, and must be an integer from 0 to 2147483647",
        ),
        (
            {"partition_assignment_strategy": ["best"]},
            "partition_assignment_strategy is ['best'], and must be any of range,"
            " roundrobin, sticky, cooperative-sticky",
        ),
        (
            {"partition_assignment_strategy": []},
            "partition_assignment_strategy is empty: name one or more",
        ),
        (
            {"group_instance_id": "i"},
            "group_instance_id needs a group_id",
        ),
        (
            {"session_timeout_ms": 3000},
            "heartbeat_interval_ms is 3000, and must be less than session_timeout_ms, 3000",
        ),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_settings(given)
    assert str(caught.value) == sentence


def test_a_single_name_in_place_of_topics_is_refused() -> None:
    with pytest.raises(UserError, match=r"topics must be a list: \['clicks'\]"):
        checked_topics("clicks")


def test_a_negative_offset_is_not_committed() -> None:
    with pytest.raises(UserError, match="-1 is not an offset to commit for t-0"):
        to_commit({TopicPartition("t", 0): -1})
