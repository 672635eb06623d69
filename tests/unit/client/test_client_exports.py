"""What applications import from `kdist`, and what editors and type checkers know of it."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import pytest

import kdist
import kdist.aio
from kdist import aio, classic
from kdist.classic import connector
from kdist.cli.release import release
from kdist.client.admin.client_settings import AdminKeywords, AdminSettings
from kdist.client.consumer.settings import CALLABLES, ConsumerKeywords, ConsumerSettings
from kdist.client.producer.settings import Callables, ProducerKeywords, ProducerSettings
from kdist.client.settings import SERVERS, Servers, settings_from
from kdist.config.declare import Setting, Settings
from kdist.config.kinds import Kind
from kdist.errors import ApiError, Error, KdistError, UserError
from kdist.model import TopicPartition

_PARTITION = TopicPartition("clicks", 1)
_GIVEN_TO_ERRORS: dict[str, tuple[object, ...]] = {
    "ApiError": (Error.NOT_LEADER_OR_FOLLOWER, "clicks-1: it moved"),
    "CommitFailed": (Error.ILLEGAL_GENERATION, "group g: it went on"),
    "ConsumerClosed": (),
    "LogTruncated": (_PARTITION, 7, 5),
    "NoOffset": (_PARTITION,),
    "NotDecoded": (_PARTITION, 7, ValueError("no JSON")),
    "OffsetOutOfRange": (_PARTITION, 7),
    "SomeFailed": ({"clicks": ApiError(Error.TOPIC_ALREADY_EXISTS)}, {"views": 1}),
}
_ERRORS = [
    name
    for name in kdist.__all__
    if isinstance(getattr(kdist, name), type) and issubclass(getattr(kdist, name), KdistError)
]

ROOT = Path(__file__).parents[3]
SAMPLES = Path(__file__).with_name("sample_programs.py")
CLIENTS: list[tuple[str, type[Settings], Any, tuple[str, ...]]] = [
    ("Producer", ProducerSettings, ProducerKeywords, Callables._fields),
    ("Consumer", ConsumerSettings, ConsumerKeywords, CALLABLES),
    ("Admin", AdminSettings, AdminKeywords, ()),
]
PLAIN = {
    Kind.BOOLEAN: bool,
    Kind.INT: int,
    Kind.LONG: int,
    Kind.DOUBLE: float,
    Kind.STRING: str,
    Kind.PASSWORD: str,
}


def shown(row: Setting) -> Any:
    """The type that a setting has for type checkers."""
    choices = row.shape.choices
    if row.attribute in SERVERS:
        return Servers
    if row.shape.kind is Kind.LIST:
        one: Any = Literal[choices]
        return one | typing.Sequence[one]
    numbers = tuple(int(each) for each in choices if each.lstrip("-").isdigit())
    kind: Any = Literal[(*choices, *numbers)] if choices else PLAIN[row.shape.kind]
    return kind | None if row.shape.nullable else kind


@pytest.mark.parametrize("name", kdist.__all__)
def test_every_exported_name_exists(name: str) -> None:
    assert getattr(kdist, name).__name__ == name
    assert name in dir(kdist)


def test_the_version_is_that_of_the_package() -> None:
    assert kdist.__version__ == release()


def test_type_checkers_see_the_same_modules() -> None:
    tree = ast.parse(Path(kdist.__file__).read_text())
    (block,) = (each for each in tree.body if isinstance(each, ast.If))
    told = {
        alias.name: each.module
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
        if alias.asname == alias.name
    }
    assert told == kdist._HOME_OF


def test_a_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'kdist' has no attribute 'Produzer'"):
        _ = kdist.Produzer


def test_importing_kdist_alone_loads_no_client() -> None:
    program = "import sys, kdist; print([each for each in sys.modules if 'kdist.' in each])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_a_client_loads_no_more_messages_than_it_sends_and_no_zookeeper(name: str) -> None:
    program = (
        f"import sys; from kdist import {name}\n"
        "print([m for m in ('kazoo', 'kdist.zk', 'kdist.protocol.versions') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_the_first_designs_names_are_in_a_module_of_their_own() -> None:
    assert all(hasattr(classic, name) for name in classic.__all__)
    assert classic.Consumer.create is connector.create
    assert classic.Consumer.create_message_streams is connector.create_message_streams
    moved = kdist._IN_CLASSIC.split()
    assert len(moved) == 12
    assert set(moved) <= set(classic.__all__)
    assert not set(moved) & set(kdist.__all__)


@pytest.mark.parametrize("name", kdist._IN_CLASSIC.split())
def test_who_imports_a_moved_name_is_told_where_it_is(name: str) -> None:
    sentence = f"{name} is a name of the first design: import it from kdist.classic"
    with pytest.raises(ImportError, match=sentence):
        exec(f"from kdist import {name}")
    with pytest.raises(ImportError, match=sentence):
        getattr(kdist, name)


def test_the_asyncio_clients_are_exported() -> None:
    assert set(kdist.aio.__all__) <= set(kdist.__all__)
    assert all(hasattr(getattr(kdist.aio, name), "__aenter__") for name in kdist.aio.__all__)


@pytest.mark.parametrize("name", _ERRORS)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_can_be_pickled(name: str, again: Any) -> None:
    error = getattr(kdist, name)(*_GIVEN_TO_ERRORS.get(name, ("it went wrong",)))
    found = again(error)
    assert (type(found), str(found)) == (type(error), str(error))
    assert found.__dict__.keys() == error.__dict__.keys()
    assert [str(each) for each in found.__dict__.values()] == [
        str(each) for each in error.__dict__.values()
    ]


@pytest.mark.parametrize(("client", "table", "keywords", "code"), CLIENTS)
def test_each_client_takes_by_name_what_its_table_declares(
    client: str, table: type[Settings], keywords: Any, code: tuple[str, ...]
) -> None:
    hints = typing.get_type_hints(keywords)
    rows = {row.attribute: row for row in table.TABLE if row.attribute != "bootstrap_servers"}
    assert hints.keys() == {*rows, *code}
    for name, row in rows.items():
        hint, expected = (
            str(each).replace("collections.abc", "typing") for each in (hints[name], shown(row))
        )
        assert hint == expected, name
    for made in (getattr(kdist, client), getattr(aio, client)):
        settings = inspect.signature(made.__init__).parameters["settings"]
        assert settings.annotation == f"Unpack[{keywords.__name__}]"


def given(client: str) -> set[str]:
    """The names with which the sample programs call a client, or that they put in its dict."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(SAMPLES.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == client:
            found |= {keyword.arg for keyword in node.keywords if keyword.arg}
        elif isinstance(node, ast.AnnAssign) and (
            ast.unparse(node.annotation) == f"{client}Keywords" and isinstance(node.value, ast.Dict)
        ):
            found |= {ast.literal_eval(key) for key in node.value.keys if key is not None}
    return found


@pytest.mark.parametrize(("client", "table", "keywords", "code"), CLIENTS)
def test_the_sample_programs_use_every_setting(
    client: str, table: type[Settings], keywords: Any, code: tuple[str, ...]
) -> None:
    assert given(client) == keywords.__annotations__.keys()


def strict(page: Path) -> str:
    """What mypy says of a page."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(page)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_mypy_accepts_the_sample_programs() -> None:
    assert strict(SAMPLES) == ""


@pytest.mark.slow
def test_mypy_refuses_what_the_clients_refuse(tmp_path: Path) -> None:
    calls = [
        'kdist.Producer("b:1", ackz="all")',
        'kdist.Producer("b:1", linger_ms="5")',
        'kdist.Producer("b:1", compression_type="rar")',
        'kdist.Consumer("b:1", grup_id="g")',
        'kdist.Consumer("b:1", auto_offset_reset="smallest")',
        'kdist.Consumer("b:1").position("clicks")',
        'kdist.aio.Consumer("b:1", max_poll_records=None)',
        'kdist.Admin("b:1", retry_ms=5)',
        'kdist.Producer("b:1").close(timeout=5)',
    ]
    page = tmp_path / "wrong.py"
    page.write_text("import kdist\nimport kdist.aio\n" + "\n".join(calls))
    lines = {int(line.split(":")[1]) for line in strict(page).splitlines() if ": error: " in line}
    assert lines == set(range(3, 3 + len(calls)))


def test_settings_read_alike_from_text_with_dots_and_from_python() -> None:
    texts = {"linger.ms": "5", "acks": "1", "enable.idempotence": "false", "zk.connect": "z:1"}
    found = settings_from(ProducerSettings, texts, "a producer")
    assert found == {
        "linger_ms": 5.0,
        "acks": "1",
        "enable_idempotence": False,
        "zk_connect": "z:1",
    }
    assert settings_from(ProducerSettings, found, "a producer") == found
    texts = {"bootstrap.servers": "a:1, b:2", "default.api.timeout.ms": "5"}
    assert settings_from(AdminSettings, texts, "an admin client") == {
        "bootstrap_servers": ("a:1", "b:2"),
        "default_api_timeout_ms": 5,
    }
    with pytest.raises(UserError, match=r"'group\.ids': did you mean group\.id\?"):
        settings_from(ConsumerSettings, {"group.ids": "g"}, "a consumer")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"retry_ms": 5}, "an admin client has no setting 'retry_ms'"),
        ({"client_id": 5}, "client_id is 5, and must be text"),
        ({"request_timeout_ms": 0}, "request_timeout_ms is 0, and must be an integer from 1"),
        ({"clientid": "x"}, "did you mean client_id?"),
    ],
)
def test_an_admins_wrong_setting_is_refused_in_a_sentence(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        aio.Admin("a:1", **wrong)
    assert sentence in str(refused.value)


def test_tools_that_list_packages_find_those_of_an_editable_installation(tmp_path: Path) -> None:
    """mypy and Spark look through the path, and know of no hooks in the interpreter's import."""
    code = "import pkgutil; print(*(each.name for each in pkgutil.iter_modules()))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert {"kdist", "pyspark_kdist"} <= set(done.stdout.split())
    (tmp_path / "own.py").write_text("import kdist\nname: int = kdist.NewTopic('t').name\n")
    words = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "own.py"]
    checked = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert 'has type "str", variable has type "int"' in checked.stdout
