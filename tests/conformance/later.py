"""Tests that are expected to fail, for now or for good, and why. Any other failure is a regression.

A `later` row is removed when its feature is implemented; a test listed there that passes counts as
passed. A `never` row is for a test of something that a broker like this one does not do, and one of
`one broker` for a test that cannot pass where partitions have replicas, or passes there by chance.
Patterns are fnmatch's, matched against the test's name in its suite.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from outcome import FAILED, LATER, SKIPPED, Outcome

TRANSACTIONS = "transactions"
SECURITY = "TLS, SASL and authorization"
BY_NAME = "DescribeTopicPartitions and ListConfigResources"

LATER_TESTS: dict[str, dict[str, str]] = {
    "librdkafka": {  # not in the default list, but can be asked for by name
        "0055": TRANSACTIONS,
        "0061": TRANSACTIONS,
        "0081": SECURITY,
        "0081:do_test_AlterConfigs:": "a setting of SASL",
        "0081:do_test_IncrementalAlterConfigs:": "a setting of SASL",
        "0098": TRANSACTIONS,
        "0103": TRANSACTIONS,
        "0109": SECURITY,
        "0115": SECURITY,
        "0119": SECURITY,
        "0129": TRANSACTIONS,
        "0135": SECURITY,
        "0137": TRANSACTIONS,
        "0142": SECURITY,
    },
    "kafka-python": {
        "*::test_create_describe_delete_acls": SECURITY,
        "*::test_describe_topic_partitions*": BY_NAME,
        "*::test_list_config_resources": BY_NAME,
        "*::test_transactional_producer_*": TRANSACTIONS,
        "test_sasl_integration.py::*": SECURITY,
        "test_ssl_integration.py::*": SECURITY,
    },
    "aiokafka": {
        "*ssl*": SECURITY,
        "*::test_sender_maybe_wait_for_pid_on_failure": TRANSACTIONS,
    },
}
NEVER_TESTS: dict[str, dict[str, str]] = {
    "librdkafka": {
        "0001": "the client waits 1 s in its own rd_kafka_destroy more often than not, and so it "
        "does with Apache Kafka",
        "0118": "with group.initial.rebalance.delay.ms=0 its second consumer comes too late to be "
        "in the first generation; Apache Kafka fails it too",
    },
    "kafka-python": {
        "*::test_kafka_version_infer": "only a broker of exactly that version can pass",
        "*::test_describe_metadata_quorum": "asks for KRaft's own log",
        "*::test_alter_replica_log_dirs": "a broker has one log directory",
        "*::test_describe_configs_broker_resource_returns_configs": "as 2.4.1 it wants listeners"
        " that can change while the broker runs",
    },
}
ONE_BROKER_TESTS: dict[str, dict[str, str]] = {
    "kafka-python": {
        "*::test_create_partitions": "assigns one replica to partitions of a topic that has three",
        "*::test_delete_records": "expects one poll to return the records of all brokers",
    },
    "aiokafka": {
        "*::TestAdmin::test_describe_cluster": "expects a cluster of one broker",
        "*::TestAdmin::test_describe_configs_broker": "expects a cluster of one broker",
        "*::TestAdmin::test_metadata": "expects a cluster of one broker",
        "*::TestAdmin::test_delete_records": "deletes up to a record that acks=1 has acknowledged,"
        " but that followers may not have yet",
        "*::test_consumer_seek_to_end": "expects the end of a log to be beyond what acks=1 has"
        " acknowledged, but followers may not have it yet",
        "*::test_send_without_response": "writes to the first broker, which need not lead",
    },
}


def patterns(suite: str) -> list[str]:
    """The patterns of the suite's tests that cannot pass yet."""
    return list(_rows(LATER_TESTS, suite))


def judged(outcome: Outcome, replicas: int) -> Outcome:
    """The outcome, changed to `later` or `skipped` if the test failed as expected.

    `replicas` is how many a partition had.
    """
    if outcome.state != FAILED:
        return outcome
    feature = _reason(LATER_TESTS, outcome)
    if feature:
        return outcome._replace(state=LATER, reason=f"needs {feature}")
    why = _reason(NEVER_TESTS, outcome)
    if not why and replicas > 1:
        why = _reason(ONE_BROKER_TESTS, outcome)
    return outcome._replace(state=SKIPPED, reason=why) if why else outcome


def _reason(table: dict[str, dict[str, str]], outcome: Outcome) -> str:
    rows = _rows(table, outcome.suite)
    return next((why for pattern, why in rows.items() if fnmatchcase(outcome.test, pattern)), "")


def _rows(table: dict[str, dict[str, str]], suite: str) -> dict[str, str]:
    """The suite's rows; an era at the end of the suite's name is ignored."""
    return table.get(suite.partition(" ")[0], {})
