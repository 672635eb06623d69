"""Editors and type checkers see every setting of the clients, by the name and type it has."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import pytest

import kdist
from kdist import aio
from kdist.client.admin.client_settings import AdminKeywords, AdminSettings
from kdist.client.consumer.settings import DECODERS, ConsumerKeywords, ConsumerSettings
from kdist.client.producer.settings import Callables, ProducerKeywords, ProducerSettings
from kdist.client.settings import SERVERS, Servers, settings_from
from kdist.config.declare import Setting, Settings
from kdist.config.kinds import Kind
from kdist.errors import UserError

ROOT = Path(__file__).parents[3]
SAMPLES = Path(__file__).with_name("sample_programs.py")
CLIENTS: list[tuple[str, type[Settings], Any, tuple[str, ...]]] = [
    ("Producer", ProducerSettings, ProducerKeywords, Callables._fields),
    ("Consumer", ConsumerSettings, ConsumerKeywords, DECODERS),
    ("Admin", AdminSettings, AdminKeywords, ()),
]
PLAIN = {Kind.BOOLEAN: bool, Kind.INT: int, Kind.LONG: int, Kind.DOUBLE: float, Kind.STRING: str}


def shown(row: Setting) -> Any:
    """The type that a setting has for type checkers."""
    choices = row.shape.choices
    if row.attribute in SERVERS:
        return Servers
    if row.shape.kind is Kind.LIST:
        one: Any = Literal[choices]
        return one | typing.Sequence[one]
    if choices:
        numbers = tuple(int(each) for each in choices if each.lstrip("-").isdigit())
        return Literal[(*choices, *numbers)]
    kind: Any = PLAIN[row.shape.kind]
    return kind | None if row.shape.nullable else kind


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
