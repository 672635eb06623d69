"""What a load tells: its columns' names, Spark's errors in one sentence."""

from __future__ import annotations

import logging
import signal

import pytest

from kdist.errors import UserError
from kdist.spark.load.columns_named import named, require_compatible
from kdist.spark.load.manifest import Column
from kdist.spark.load.spark_java import words_of
from kdist.spark.load.spark_session import (
    is_no_call_to_java,
    put_off_interrupts,
    sentence_of,
    settings_of,
)


def test_columns_have_their_fields_names_where_these_are_free() -> None:
    fields = ["id", "ID", "date", "Topic", "record_value", "json_date"]
    assert [each.column for each in named((field, "int") for field in fields)] == [
        "id",
        "ID_2",
        "json_date",
        "json_Topic",
        "json_record_value",
        "json_date_2",
    ]


def test_a_column_keeps_its_type() -> None:
    before = [Column("id", "id", "bigint")]
    require_compatible("clicks", [Column("new", "new", "int")], before, 3)
    with pytest.raises(
        UserError, match="the column id is int by the schema, but bigint since load 3"
    ):
        require_compatible("clicks", [Column("id", "id", "int")], before, 3)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Traceback (most recent call last):\n  File ...\n"
            "kdist.errors.UserError: there is no topic x\n SQLSTATE: 38000",
            "there is no topic x",
        ),
        (
            "Job aborted.\nCaused by: java.io.IOException: No space left on device\n\tat x",
            "no space is left in the job's output, or in spark.local.dir",
        ),
        (
            "Job aborted.\n\tat x\nCaused by: a.B: one\n\tat y\nCaused by: c.D: two\n\tat z",
            "c.D: two",
        ),
        (
            "Traceback (most recent call last):\n  File x\nValueError: bad\n SQLSTATE: 38000",
            "ValueError: bad",
        ),
        (
            "An error occurred while calling None.X.\n: o.S: Could not parse 'local[x]'\n\tat y",
            "o.S: Could not parse 'local[x]'",
        ),
        (
            "\n[UNSUPPORTED] no type INTT (line 1)\n\n== SQL ==\nn INTT\n",
            "[UNSUPPORTED] no type INTT (line 1)",
        ),
        (
            "An error occurred while calling o1.parquet.\n: o.S: Python worker exited unexpectedly"
            " (crashed). Consider\n\tat x\nCaused by: java.io.EOFException\n\tat y",
            "a Python worker of Spark's ended before its time: the kernel does this when memory is"
            " short",
        ),
        (
            "Job aborted.\n\tat x\nCaused by: java.io.IOException: Unexpected end of input trying"
            " to read batch.\n\tat y",
            "a Python worker of Spark's ended before its time: the kernel does this when memory is"
            " short",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
            "its Java ended at once; the reason may be in its output above",
        ),
        ("plain", "plain"),
        ("", "Spark gave no reason"),
    ],
)
def test_an_error_of_spark_becomes_one_sentence(said: str, sentence: str) -> None:
    assert sentence_of(said) == sentence


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGKILL, "was killed: the kernel does this when memory is short"),
        (-signal.SIGTERM, "was ended by signal 15"),
        (52, "ended with status 52"),
    ],
)
def test_the_way_that_java_ended_follows_from_its_status(status: int, words: str) -> None:
    assert words_of(status) == f"Spark's Java {words}"


def test_the_jobs_own_settings_for_spark_win() -> None:
    found = settings_of("local[2]", "UTC", {"spark.ui.enabled": "true"})
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings_of("spark://b1:7077", "UTC", {})
    java = settings_of("local", "UTC", {"spark.driver.extraJavaOptions": "-Xss1m"})
    assert java["spark.driver.extraJavaOptions"].endswith("log4j2.properties -Xss1m")


def test_an_interrupt_waits_until_spark_has_started_and_a_second_one_does_not() -> None:
    with put_off_interrupts() as heard:
        signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_py4js_messages_about_its_calls_are_not_logged() -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "said", (), None)

    assert not is_no_call_to_java(record("/x/py4j/java_gateway.py"))
    assert is_no_call_to_java(record("/x/other.py"))


def test_workers_without_kdist_are_told_as_such() -> None:
    said = "[PYTHON_DATA_SOURCE_ERROR] x\nModuleNotFoundError: No module named 'kdist.spark'\n\tat"
    assert sentence_of(said).startswith("the Python that Spark's workers run has no kdist")
