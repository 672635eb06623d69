"""Which topics a flow mirrors, under which names, and which it holds back."""

from __future__ import annotations

import dataclasses

import pytest

from kdist.config.mirror import Flow, FlowSettings
from kdist.mirror.selection import Origin, Selection, select, without

PLAIN = Flow("f", FlowSettings(source="a:1", target="b:1"))
TOPICS = ["flights", "flights-2", "ops.host", "opsXhost", "__consumer_offsets", "dc1.flights"]


def flow(**changes: object) -> Flow:
    settings = dataclasses.replace(PLAIN.settings, **changes)  # type: ignore[arg-type]
    return Flow("f", settings)


@pytest.mark.parametrize(
    ("changes", "mirrored"),
    [
        ({}, ["dc1.flights", "flights", "flights-2", "ops.host", "opsXhost"]),
        ({"topics": ("flights",)}, ["flights"]),
        ({"topics": ("flights", r"ops\..*")}, ["flights", "ops.host"]),
        ({"topics_exclude": (".*flights.*",)}, ["ops.host", "opsXhost"]),
        ({"topics": ("ops.host",), "topics_exclude": ("opsXhost",)}, ["ops.host"]),
        ({"topics": ("__.*",)}, []),
    ],
)
def test_patterns_match_whole_names_and_never_internal_ones(
    changes: dict[str, object], mirrored: list[str]
) -> None:
    found = select(flow(**changes), TOPICS, {}, "B")
    assert list(found.mirrored) == mirrored
    assert found.held == {}


def test_with_a_prefix_topics_are_renamed_and_those_that_have_it_are_held_back() -> None:
    found = select(flow(prefix="dc1."), TOPICS, {}, "B")
    assert found.mirrored["ops.host"] == "dc1.ops.host"
    assert found.held == {"dc1.flights": "it already has the prefix dc1."}


def test_a_topic_whose_name_gets_too_long_is_held_back() -> None:
    long = "x" * 249
    found = select(flow(prefix="dc1."), [long], {}, "B")
    assert found.held[long].endswith("its name is longer than 249 characters")


def test_a_topic_that_came_from_the_target_is_held_back_over_any_number_of_hops() -> None:
    origins = {
        "flights": Origin("flights", ("B",)),
        "ops.host": Origin("ops", ("C", "B", "D")),
        "opsXhost": Origin("ops", ("C", "D")),
    }
    found = select(PLAIN, TOPICS, origins, "B")
    assert set(found.held) == {"flights", "ops.host"}
    assert "opsXhost" in found.mirrored


def test_a_topic_that_the_target_refuses_does_not_hold_up_the_others() -> None:
    found = without(Selection({"a": "x.a", "b": "x.b"}, {"c": "why"}), {"b": "too many"})
    assert found == Selection({"a": "x.a"}, {"c": "why", "b": "too many"})
