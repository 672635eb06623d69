"""What applications import from `kdist`: loaded on first use, and typed."""

from __future__ import annotations

import ast
import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kdist
import kdist.aio
from kdist import classic
from kdist.client.classic import connector
from kdist.errors import ApiError, Error, KdistError
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


@pytest.mark.parametrize("name", kdist.__all__)
def test_every_exported_name_exists(name: str) -> None:
    assert getattr(kdist, name).__name__ == name
    assert name in dir(kdist)


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
