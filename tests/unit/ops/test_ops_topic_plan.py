"""Topics as code: the steps for each declared topic, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kdist.errors import UserError
from kdist.ops.topic_plan import Existing, TopicPlan, parse_wanted, plan_topics

CLICKS = Existing("clicks", 4, 2, {"retention.ms": "1000"})


def planned(*items: dict[str, Any], delete: tuple[str, ...] = ()) -> TopicPlan:
    return plan_topics(parse_wanted(list(items)), {"clicks": CLICKS}, delete)


def steps(*items: dict[str, Any], delete: tuple[str, ...] = ()) -> list[str]:
    plan = planned(*items, delete=delete)
    assert plan.refusals == ()
    return [str(step) for step in plan.steps]


def test_a_missing_topic_is_created() -> None:
    assert steps({"name": "new", "partitions": 3}) == ["create topic new"]


def test_a_topic_that_is_as_wanted_needs_no_step() -> None:
    same = {"name": "clicks", "partitions": 4, "replication_factor": 2}
    assert steps(same | {"config": {"retention.ms": 1000}}) == []
    assert steps({"name": "clicks"}) == []


def test_partitions_are_added_and_settings_set() -> None:
    more = {"partitions": 6, "config": {"retention.ms": 1000, "preallocate": True}}
    assert steps({"name": "clicks"} | more) == [
        "grow topic clicks to 6 partitions",
        "set preallocate=true of topic clicks",
    ]


@pytest.mark.parametrize(
    ("wish", "refusal"),
    [
        ({"partitions": 2}, "topic clicks has 4 partitions, and they only become more: not 2"),
        (
            {"replication_factor": 3},
            "topic clicks has 2 replicas of each partition, and not 3: "
            "replicas are moved by a reassignment",
        ),
        ({"state": "absent"}, "topic clicks would be deleted, and that is not confirmed"),
    ],
)
def test_a_declaration_that_cannot_be_carried_out_is_refused(
    wish: dict[str, Any], refusal: str
) -> None:
    assert planned({"name": "clicks"} | wish).refusals == (refusal,)


def test_a_confirmed_deletion_is_done_once() -> None:
    gone = ({"name": "clicks", "state": "absent"}, {"name": "gone", "state": "absent"})
    assert steps(*gone, delete=("clicks",)) == ["delete topic clicks with all its records"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "topics must be a list of objects"),
        ([{"partitions": 1}], "a topic needs a name"),
        ([{"name": "a", "partition": 1}], "topic a: there is no 'partition'"),
        ([{"name": "a", "partitions": 0}], "partitions is 0, and not a number above 0"),
        ([{"name": "a", "partitions": True}], "partitions is True"),
        ([{"name": "a", "config": [1]}], "config is not settings by name"),
        ([{"name": "a", "config": {"b": None}}], "topic a: b is None, and not a text or number"),
        ([{"name": "a", "state": "gone"}], "state is 'gone', and not present or absent"),
        ([{"name": "a"}, {"name": "a"}], "topic a is there twice"),
    ],
)
def test_a_declaration_that_cannot_be_parsed_is_named(value: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_wanted(value)
