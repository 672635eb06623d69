"""Which Python Spark's workers run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kdist.errors import UserError
from kdist.spark.workers import choose_python


def chosen(master: str, python: str) -> str:
    context: Any = SimpleNamespace(master=master, pythonExec=python)
    choose_python(context)
    return str(context.pythonExec)


def test_workers_on_this_machine_run_this_python_where_nothing_says_which() -> None:
    assert chosen("local[2]", "python3") == sys.executable
    assert chosen("spark://b1:7077", "python3") == "python3"


def test_a_python_without_kdist_is_refused_in_a_sentence(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    for python in (str(bare), str(tmp_path / "missing")):
        with pytest.raises(
            UserError, match=f"run {python}, .* set PYSPARK_PYTHON={sys.executable}"
        ):
            chosen("local[1]", python)
    assert chosen("spark://b1:7077", str(bare)) == str(bare)


def test_another_python_that_has_kdist_stays(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    assert chosen("local[1]", str(other)) == str(other)
