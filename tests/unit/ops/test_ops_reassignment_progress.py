"""How far a plan has come, what begins next, and the file that it is in."""

from __future__ import annotations

import json

import pytest

from kdist.client.admin.reassignments import Reassignment
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.ops.reassignment.plan import Move, encode_plan, parse_plan
from kdist.ops.reassignment.progress import (
    Status,
    next_moves,
    status_of,
    throttled_replicas,
)


def a_move(number: int, before: tuple[int, ...], after: tuple[int, ...], size: int = 1) -> Move:
    return Move(TopicPartition("t", number), before, after, size)


MOVE = a_move(0, (1, 2), (3, 2))


@pytest.mark.parametrize(
    ("replicas", "under_way", "status"),
    [
        ((1, 2), None, Status.WAITING),
        ((3, 2), None, Status.DONE),
        ((2, 3), None, Status.ELSEWHERE),
        ((1, 2, 4), None, Status.ELSEWHERE),
        ((3, 2, 1), None, Status.MOVING),  # it has arrived, and this broker does not know yet
        ((3, 2, 4), None, Status.ELSEWHERE),
        (None, None, Status.GONE),
        ((3, 2, 1), Reassignment((3, 2, 1), (3,), (1,)), Status.MOVING),
        ((1, 2), Reassignment((3, 2, 1), (3,), (1,)), Status.MOVING),
        ((1, 2, 4), Reassignment((4, 2, 1), (4,), (1,)), Status.ELSEWHERE),
    ],
)
def test_a_moves_status_follows_from_what_the_cluster_says(
    replicas: tuple[int, ...] | None, under_way: Reassignment | None, status: Status
) -> None:
    assert status_of(MOVE, replicas, under_way) is status


def test_no_broker_is_given_more_than_it_may_have_at_once() -> None:
    moves = [a_move(number, (1, 2), (3, 2), size=number + 1) for number in range(5)]
    other = a_move(9, (4, 5), (6, 5))
    leader_only = a_move(10, (1, 2), (2, 1))
    statuses = dict.fromkeys([*moves, other, leader_only], Status.WAITING)
    assert next_moves(statuses, 2) == [moves[4], moves[3], other, leader_only]
    statuses[moves[4]] = Status.MOVING
    assert next_moves(statuses, 2) == [moves[3], other, leader_only]
    statuses[moves[3]] = Status.MOVING
    assert next_moves(statuses, 2) == [other, leader_only]


def test_only_copies_are_throttled() -> None:
    moves = [MOVE, a_move(1, (1, 2), (2, 1)), a_move(4, (5, 6), (7, 8))]
    assert throttled_replicas(moves) == {"t": ("0:1,0:2,4:5,4:6", "0:3,4:7,4:8")}


def test_of_a_topic_with_very_many_partitions_all_replicas_are_throttled() -> None:
    moves = [a_move(number, (1, 2), (3, 2)) for number in range(2000)]
    assert throttled_replicas(moves) == {"t": ("*", "*")}


def test_a_plan_is_read_as_it_was_written() -> None:
    moves = [MOVE, a_move(1, (1,), (2, 3), size=5)]
    data = encode_plan(moves)
    assert parse_plan("plan.json", data) == moves
    assert json.loads(data)["partitions"][0]["replicas"] == [3, 2]
    assert parse_plan("plan.json", encode_plan([])) == []


ROW = {"topic": "t", "partition": 0, "replicas": [1], "kdist_before": [2], "kdist_size_bytes": 1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a plan"),
        ('{"version": 2, "partitions": []}', "is not a plan"),
        ('{"version": 1, "version": 1, "partitions": []}', "twice"),
        (json.dumps({"version": 1, "partitions": [3]}), "3 is not a partition"),
        (json.dumps({"version": 1, "partitions": [ROW, ROW]}), "names t-0 twice"),
        *(
            (json.dumps({"version": 1, "partitions": [{**ROW, **changed}]}), sentence)
            for changed, sentence in [
                ({"topic": ""}, "does not name a topic and a partition"),
                ({"partition": True}, "does not name a topic and a partition"),
                ({"replicas": []}, "needs lists of brokers"),
                ({"kdist_before": None}, "needs lists of brokers"),
                ({"replicas": [1, 1]}, "names a broker twice"),
                ({"replicas": [-1]}, "needs lists of brokers"),
                ({"kdist_size_bytes": "1"}, "is not a number of bytes"),
            ]
        ),
    ],
)
def test_mistakes_in_a_plan_are_named(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_plan("plan.json", text.encode())
