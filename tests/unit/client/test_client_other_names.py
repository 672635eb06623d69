"""The pages for those who come from another client go name by name, and each name is one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import pytest

import kdist
from kdist import aio

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
NAMES = ("from-kafka-python", "from-confluent-kafka", "from-aiokafka")
SECTIONS = {
    (name, title): text
    for name in NAMES
    for title, text in re.findall(
        r"\n## (\w[\w.]*)\n(.*?)(?=\n## |\Z)", (GUIDES / f"{name}.md").read_text(), re.DOTALL
    )
}
NO_PROPERTY = "no.such.property"
SETTINGS = {
    "bootstrap_servers",
    *kdist.ProducerKeywords.__annotations__,
    *kdist.ConsumerKeywords.__annotations__,
    *kdist.AdminKeywords.__annotations__,
}
OURS = {
    "KafkaProducer": (kdist.Producer, kdist.ProducerKeywords),
    "KafkaConsumer": (kdist.Consumer, kdist.ConsumerKeywords),
    "KafkaAdminClient": (kdist.Admin, kdist.AdminKeywords),
    "AIOKafkaProducer": (aio.Producer, kdist.ProducerKeywords),
    "AIOKafkaConsumer": (aio.Consumer, kdist.ConsumerKeywords),
    "AIOKafkaAdminClient": (aio.Admin, kdist.AdminKeywords),
    "Producer": (kdist.Producer, kdist.ProducerKeywords),
    "Consumer": (kdist.Consumer, kdist.ConsumerKeywords),
    "AdminClient": (kdist.Admin, kdist.AdminKeywords),
}


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def with_defaults(of: Any) -> set[str]:
    return public(of) | of.DEFAULT_CONFIG.keys()


def with_arguments(of: type) -> set[str]:
    return (public(of) | inspect.signature(of).parameters.keys()) - {"self"}


OF_CONFLUENT = SimpleNamespace(**(vars(confluent_kafka) | vars(confluent_kafka.KafkaError)))
THEIRS = {
    ("from-kafka-python", "KafkaProducer"): with_defaults(kafka.KafkaProducer),
    ("from-kafka-python", "KafkaConsumer"): with_defaults(kafka.KafkaConsumer),
    ("from-kafka-python", "KafkaAdminClient"): with_defaults(kafka.KafkaAdminClient),
    ("from-confluent-kafka", "Producer"): public(confluent_kafka.Producer),
    ("from-confluent-kafka", "Consumer"): public(confluent_kafka.Consumer)
    | public(confluent_kafka.Message),
    ("from-confluent-kafka", "AdminClient"): public(confluent_kafka.admin.AdminClient),
    ("from-aiokafka", "AIOKafkaProducer"): with_arguments(aiokafka.AIOKafkaProducer),
    ("from-aiokafka", "AIOKafkaConsumer"): with_arguments(aiokafka.AIOKafkaConsumer),
    ("from-aiokafka", "AIOKafkaAdminClient"): with_arguments(aiokafka.admin.AIOKafkaAdminClient),
}


def rows(text: str) -> Iterator[tuple[list[str], str]]:
    """Each row of a section's tables: the names on the left, what stands on the right."""
    for left, right in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE):
        yield re.findall(r"`([^`]+)`", left), right


@pytest.mark.parametrize(("page", "section"), THEIRS)
def test_every_name_of_another_client_is_on_its_page(page: str, section: str) -> None:
    told = {name for names, _ in rows(SECTIONS[page, section]) for name in names}
    assert THEIRS[page, section] - told == set()


@pytest.mark.parametrize(("page", "section"), THEIRS)
def test_what_is_said_to_be_the_same_has_the_same_name(page: str, section: str) -> None:
    ours, keywords = OURS[section]
    known = {"bootstrap_servers"} | keywords.__annotations__.keys()
    known |= public(ours) | public(kdist.ConsumedRecord)
    same = {
        name
        for names, right in rows(SECTIONS[page, section])
        if right.startswith("the same")
        for name in names
    }
    assert same - known == set()


@pytest.mark.parametrize(("page", "section"), THEIRS)
def test_what_has_no_counterpart_is_no_name_of_ours(page: str, section: str) -> None:
    ours, keywords = OURS[section]
    lacking = {
        name
        for names, right in rows(SECTIONS[page, section])
        if right.startswith("none")
        for name in names
    }
    assert lacking & (public(ours) | keywords.__annotations__.keys()) <= {"poll"}


def found_in_kdist(name: str) -> bool:
    """Whether it is a name of ours: of a class, a method, a setting or an error."""
    if name in SETTINGS:
        return True
    at: Any = kdist
    for part in name.split("."):
        at = aio if part == "aio" else getattr(at, part, None)
    return at is not None


@pytest.mark.parametrize("page", NAMES)
def test_every_name_of_ours_on_a_page_exists(page: str) -> None:
    text = (GUIDES / f"{page}.md").read_text()
    right = " ".join(right for _, right in rows(text))
    named = set(re.findall(r"`((?:aio\.)?[A-Z]\w+(?:\.\w+)*)`", right))
    for _, cell in rows(text):
        if settings := re.match(r"(`[a-z_]+`(, )?)+", cell):
            named |= set(re.findall(r"`(\w+)`", settings[0]))
    assert len(named) > 20
    assert {name for name in named if not found_in_kdist(name)} <= {
        "TimeoutError",  # Python's own
        "OFFSET_BEGINNING",
        "OFFSET_END",
    }


def test_every_setting_on_the_page_is_one_of_librdkafka() -> None:
    section = SECTIONS["from-confluent-kafka", "Settings"]
    named = {name for names, _ in rows(section) for name in names if "." in name}
    assert len(named) > 60
    unknown = set()
    for name in named:  # the second name is no property, so that no client is made
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            confluent_kafka.Producer({name: "", NO_PROPERTY: ""})
        if f'No such configuration property: "{name}"' in str(refused.value):
            unknown.add(name)
    assert unknown == set()


def test_what_is_the_same_setting_of_librdkafka_is_one_of_ours_with_underscores() -> None:
    same = {
        name.replace(".", "_")
        for names, right in rows(SECTIONS["from-confluent-kafka", "Settings"])
        if right.startswith("the same")
        for name in names
    }
    assert len(same) > 25
    assert same - SETTINGS == set()


@pytest.mark.parametrize(
    ("page", "section", "errors"),
    [
        ("from-kafka-python", "kafka.errors", kafka.errors),
        ("from-aiokafka", "aiokafka.errors", aiokafka.errors),
        ("from-confluent-kafka", "Errors", OF_CONFLUENT),
    ],
)
def test_every_error_on_a_page_is_one_of_its_library(page: str, section: str, errors: Any) -> None:
    named = {name for names, _ in rows(SECTIONS[page, section]) for name in names}
    assert len(named) > 8
    of_older_ones = {"NoBrokersAvailable", "BufferError", "KafkaError.code()"}
    assert {name for name in named if not hasattr(errors, name)} <= of_older_ones
