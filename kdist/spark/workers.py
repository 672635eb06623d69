"""The Python that Spark's workers on this machine run, which must have kdist."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from kdist.errors import UserError

if TYPE_CHECKING:
    from pyspark import SparkContext

_UNSET = "python3"  # what PySpark takes if PYSPARK_PYTHON does not say
_ANSWER_S = 60


def is_alone(master: str) -> bool:
    """Whether `master` runs Spark on this machine only."""
    return master.startswith("local")


def choose_python(context: SparkContext) -> None:
    """Have workers run this Python, if nothing says which; `UserError` if that has no kdist.

    With other hosts nothing is chosen or checked: they may have their Pythons elsewhere.
    """
    if not is_alone(context.master or ""):
        return
    if context.pythonExec == _UNSET:
        context.pythonExec = sys.executable
    if context.pythonExec != sys.executable and not _has_kdist(context.pythonExec):
        raise UserError(
            f"Spark's workers run {context.pythonExec}, as PYSPARK_PYTHON has it, which has no"
            f" kdist: set PYSPARK_PYTHON={sys.executable}"
        )


def _has_kdist(python: str) -> bool:
    command = [python, "-c", "import kdist"]
    try:
        asked = subprocess.run(command, capture_output=True, check=False, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
