"""docs/reference/classes.md as sentences, for the tests that try each of them.

`says` names a sentence of the page by its beginning, and fails if the page has none; what follows
it tries it. A sentence of `SECTIONS` that is neither said in a test nor in `ELSEWHERE` fails
`test_every_sentence_is_tried`, so whoever adds one also says how it is tried.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kdist import Consumer, TopicPartition

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/classes.md").read_text(encoding="utf-8")
PATIENCE_S = 30
SECTIONS = ("Producer", "Sent", "SentMany", "Consumer", "ConsumedRecord", "Batch", "Admin")
SECTIONS += ("CodingContext", "NewTopic", "OffsetAndMetadata", "OffsetAndTimestamp", "OffsetRange")
SECTIONS += ("RebalanceListener", "RecordMetadata", "TopicPartition", "ShiftBy", "ToEarliest")
SECTIONS += ("ToLatest", "ToOffset", "ToTime", "AdminKeywords", "ConsumerKeywords")
SECTIONS += ("ProducerKeywords", "ConsumerInterceptor", "ProducerInterceptor", "ProducerRecord")
SECTIONS += ("Errors",)

ACLS = "unit/client/test_client_admin_acls.py"
ELSEWHERE = {  # the beginning of a sentence: where it is tried, and a word of that test
    "The ACLs in force that match": (ACLS, "described"),
    "Create ACLs; those that there": (ACLS, "create_acls"),
    "`SomeFailed` if any could not be": (ACLS, "some.value.failed"),
    "Delete the ACLs that match any": (ACLS, "delete_acls"),
    "`SomeFailed` if some filters could": (ACLS, "some.value.done"),
    "The error for which a batch is sent again": (
        "unit/cli/test_cli_produce.py",
        "what_keeps_records_from_being_acknowledged",
    ),
    "Settings have the names of Kafka": ("unit/client/test_client_exports.py", "TABLE"),
    "`settings` are those that": ("unit/client/test_client_exports.py", "TABLE"),
    "The type of a dict of settings": ("unit/client/test_client_exports.py", "Keywords"),
    "`buffer_memory` stayed full for": (
        "unit/client/test_client_producer_sending.py",
        "BufferFull",
    ),
    **dict.fromkeys(
        (
            "`UserError` where it would wait for itself",
            "In a signal handler or `__del__` that interrupts",
        ),
        ("unit/client/test_client_producer_interrupting.py", "from_inside"),
    ),
    **dict.fromkeys(
        ("Whatever it raises has an attribute `sent`", "Raised by `send_many`, it has `sent`"),
        ("unit/client/test_client_producer_sending.py", "what_send_many_raises"),
    ),
    "Calls that wait for an earlier commit": (
        "unit/client/test_client_consumer_commits.py",
        "are_joined",
    ),
    "The group has rebalanced without": (
        "integration/test_integration_consumer.py",
        "CommitFailed",
    ),
    "Process fewer records between": (
        "integration/test_integration_consumer.py",
        "max_poll_interval_ms",
    ),
    "The record was not acknowledged": (
        "unit/client/test_client_producer_sending.py",
        "DeliveryTimedOut",
    ),
    "It may still have been written": (
        "unit/client/test_client_producer_sending.py",
        "DeliveryTimedOut",
    ),
    "The log was truncated below": ("unit/client/test_client_consumer_reading.py", "LogTruncated"),
    "The call blocks for up to": ("unit/client/test_client_producer_sending.py", "BufferFull"),
    "Deliver what was sent, for up to": ("unit/client/test_client_producer_sending.py", "close("),
    "Those for a topic that was deleted": (
        "unit/client/test_client_producer_requests.py",
        "closing_does_not_wait",
    ),
    "Records still undelivered then": (
        "unit/client/test_client_producer_sending.py",
        "ProducerClosed",
    ),
    "`UserError` where waiting would": ("unit/client/test_client_left_open.py", "UserError"),
    "Commit if auto-commit is on": ("unit/client/test_client_consumer_groups.py", "instance_id"),
    "While an exception is handled": (
        "unit/client/test_client_consumer_closing.py",
        "returned_last_before_a_failure",
    ),
    "With `isolation_level` read_comm": (
        "integration/test_integration_consumer_kafka.py",
        "read_committed",
    ),
    "Raises `CommitFailed` if": ("integration/test_integration_consumer.py", "CommitFailed"),
    "If that is of partitions that no": (
        "unit/client/test_client_consumer_groups.py",
        "cuts-0",
    ),
    "The records as an Arrow": ("unit/client/test_client_consumer_batch.py", "to_arrow"),
    "`columns` are of": ("unit/client/test_client_consumer_batch.py", "to_arrow"),
    "Offsets are int64": ("unit/client/test_client_consumer_batch.py", "to_arrow"),
    "Only the named columns": ("unit/client/test_client_consumer_batch.py", "to_arrow"),
    "Have partitions led by": ("unit/broker/test_broker_elections.py", "elect"),
    "True for each that": ("unit/client/test_client_admin.py", "elect_leaders"),
    "`SomeFailed` where the preferred": ("unit/client/test_client_admin.py", "elect_leaders"),
    "`is_unclean`: have those": ("unit/client/test_client_admin.py", "elect_leaders"),
    "The records that it lacks are": ("unit/broker/test_broker_elections.py", "unclean"),
    "`SomeFailed` for partitions that": ("unit/cli/test_cli_leaderless.py", "SomeFailed"),
    "`SomeFailed` once it has moved": ("unit/cli/test_cli_leaderless.py", "moved"),
    "An API that kdist does not know": ("unit/client/test_client_admin.py", "describe_versions"),
    "A broker that does not answer, or": ("unit/client/test_client_admin.py", "patience_s"),
    **dict.fromkeys(
        (
            "The client's metrics by name",
            "A name has its labels",
            "Counters start at 0",
            "The client's metrics in Prometheus",
            "Clients of one program",
        ),
        ("unit/client/test_client_metrics.py", "metrics_text(second)"),
    ),
    **dict.fromkeys(
        (
            "Override the methods you need, and",
            "What one raises is logged",
            "Called before `poll` returns",
            "A loop over the consumer calls it",
            "`poll_batches` does not",
            "Records that it leaves out",
            "The coordinator has these",
            "Called on the consumer's event",
            "The consumer is closed.",
            "Called by `send`",
            "A record is acknowledged, or has",
            "Called on the producer's event",
            "The producer is closed.",
            "A record as it was given",
        ),
        ("unit/client/test_client_interceptors.py", "on_acknowledgement"),
    ),
    "These were lost, and others": ("integration/test_integration_consumer.py", "on_lost"),
    "By default calls `on_revoked`": ("integration/test_integration_consumer.py", "on_lost"),
    "With `kdist.aio` they may be": (
        "unit/client/test_client_consumer_groups.py",
        "async def on_revoked",
    ),
}


def sentences() -> list[str]:
    """The sentences of the sections, without markup of headings."""
    found = []
    for section in re.split(r"\n(?=## )", PAGE):
        title = section.partition("\n")[0].removeprefix("## ")
        if title in SECTIONS:
            text = section.partition("\n## kdist")[0]
            text = re.sub(r"(?m)^(#.*|(Fields|Keys): .*)$", "", text)
            text = re.sub(r"(?m)^- `\w+`(?:, a kind of `\w+`)?: ", "\n", text)
            for paragraph in text.split("\n\n"):
                flat = " ".join(paragraph.split())
                found += [each for each in re.split(r"(?<=\.) (?=[A-Z`])", flat) if each]
    return found


SENTENCES = sentences()


def says(*beginnings: str) -> None:
    """The page says this, and the lines that follow try it."""
    for each in beginnings:
        assert any(sentence.startswith(each) for sentence in SENTENCES), f"no more said: {each}"


def place(topic: str, number: int = 0) -> TopicPartition:
    return TopicPartition(topic, number)


def taken(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        records = consumer.poll(PATIENCE_S)
        assert records
        found += records
    return found
