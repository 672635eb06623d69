"""The pages for those who come from another client go name by name, and each name is one."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Callable, Iterator
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
from kdist.client import foreign

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
NAMES = ("from-kafka-python", "from-confluent-kafka", "from-aiokafka")
SECTIONS = {
    (name, title): text
    for name in NAMES
    for title, text in re.findall(
        r"\n## (\w[\w.]*)\n(.*?)(?=\n## |\Z)", (GUIDES / f"{name}.md").read_text(), re.DOTALL
    )
}
NOWHERE = "127.0.0.1:1"
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


BLOCKS = {  # by a table's first heading: what its names are to kdist
    "theirs": lambda ours: foreign.METHODS[ours.__name__.removeprefix("Async")],
    "their setting": lambda _: foreign.SETTINGS,
}


def foreign_rows() -> Iterator[tuple[dict[str, str], str, str]]:
    """Each name on a page that is none of ours: the table that it is to be in, and its cell."""
    for (_, section), text in SECTIONS.items():
        ours, keywords = OURS.get(section, (None, kdist.ProducerKeywords))
        if ours is not None and section not in kdist.__all__:
            yield foreign.CLASSES, section, f"`{ours.__name__.removeprefix('Async')}`"
        for block in text.split("\n\n"):
            heading = block.strip().partition("|")[2].partition("|")[0].strip()
            table, known = foreign.CLASSES, set(kdist.__all__)
            if section == "Settings":
                table, known = foreign.SETTINGS, SETTINGS
            elif ours is not None and heading in BLOCKS:
                table = BLOCKS[heading](ours)
                known = public(ours) | {"bootstrap_servers"} | keywords.__annotations__.keys()
            elif ours is not None:
                continue  # what is an attribute of a record
            for names, right in rows(block):
                for name in names:
                    plain = name.replace(".", "_") if section == "Settings" else name
                    is_theirs = plain.isidentifier() and not hasattr(builtins, plain)
                    if (
                        is_theirs
                        and plain not in known | {"MSG_SIZE_TOO_LARGE"}
                        and plain[0] != "_"
                    ):
                        yield table, plain, right


@pytest.mark.parametrize(
    ("table", "name", "cell"),
    [pytest.param(*row, id=f"{number}-{row[1]}") for number, row in enumerate(foreign_rows())],
)
def test_a_name_on_a_page_is_refused_with_what_the_page_says(
    table: dict[str, str], name: str, cell: str
) -> None:
    said = foreign.hint(table, name)
    if ours := re.fullmatch(r": kdist has (\S+) for it", said):
        assert ours[1] in {each.removeprefix("aio.") for each in re.findall(r"`([^`]+)`", cell)}
    else:
        assert said
        assert cell.startswith("none")


def test_each_name_that_is_refused_so_is_on_a_page() -> None:
    found = {(id(table), name) for table, name, _ in foreign_rows()}
    pages = " ".join((GUIDES / f"{name}.md").read_text() for name in NAMES)
    for table in (foreign.SETTINGS, foreign.CLASSES, *foreign.METHODS.values()):
        lacking = {name for name in table if (id(table), name) not in found}
        assert {name for name in lacking if f"`{name}` is" not in pages} == set()
    assert {name for name in foreign.ARGUMENTS if not re.search(rf"\b{name}\b", pages)} == set()


@pytest.mark.parametrize(
    ("use", "error", "ours"),
    [
        (lambda: kdist.Producer(NOWHERE, value_serializer=str.encode), kdist.UserError, "value_en"),
        (
            lambda: kdist.Consumer(NOWHERE, **{"enable.partition.eof": True}),
            kdist.UserError,
            "end_",
        ),
        (lambda: kdist.Admin(NOWHERE, sasl_kerberos_name="x"), kdist.UserError, "no Kerberos"),
        (lambda: kdist.Producer({"bootstrap.servers": NOWHERE}), TypeError, r"\*\*settings"),
        (lambda: kdist.Consumer("t", bootstrap_servers=NOWHERE), TypeError, "Consumer.subscribe"),
        (lambda: kdist.KafkaProducer, ImportError, "Producer"),
        (lambda: aio.AIOKafkaConsumer, ImportError, "Consumer"),
        (lambda: kdist.NoSuchThing, AttributeError, "no attribute 'NoSuchThing'$"),
    ],
)
def test_a_name_of_another_client_is_refused_with_ours(
    use: Callable[[], object], error: type[Exception], ours: str
) -> None:
    with pytest.raises(error, match=ours):
        use()


def test_a_method_of_another_client_is_refused_with_ours() -> None:
    with kdist.Producer(NOWHERE) as producer, kdist.Consumer(NOWHERE, group_id="g") as consumer:
        calls: dict[str, Callable[[], object]] = {
            "Producer.send ": lambda: producer.produce("t", b""),
            "timeout_s ": lambda: producer.flush(timeout=1),
            "timeout_s for": lambda: consumer.poll(timeout_ms=1),
            "Consumer.poll ": lambda: consumer.getone(),
            "topics ": lambda: consumer.subscribe(pattern="t"),
            "Consumer.commit_async ": lambda: consumer.commit(asynchronous=True),
        }
        for ours, call in calls.items():
            with pytest.raises((AttributeError, TypeError), match=f": kdist has {ours}"):
                call()
        for call in (lambda: producer.colour, lambda: consumer.poll(colour=1)):
            with pytest.raises((AttributeError, TypeError), match=r"'colour'$"):
                call()


async def test_a_method_of_aiokafka_is_refused_with_ours() -> None:
    async with aio.Producer(NOWHERE) as producer, aio.Consumer(NOWHERE) as consumer:
        with pytest.raises(AttributeError, match=r"kdist has Consumer\.poll for it"):
            await consumer.getmany()
        with pytest.raises(TypeError, match="kdist has timeout_s for it"):
            await consumer.poll(timeout_ms=1)
        with pytest.raises(AttributeError, match=r"kdist has Producer\.close for it"):
            await producer.stop()
        with pytest.raises(TypeError, match="kdist has timestamp for it"):
            await producer.send_and_wait("t", b"", timestamp_ms=1)


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
