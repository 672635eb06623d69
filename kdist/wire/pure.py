"""Whether this process must not use compiled code: `KDIST_PURE=1` in its environment.

The CRC and the record codec look at it: both also have a slower version in plain Python. Tests set
it to run on those, as may hosts for which no wheel was built.
"""

import os
from importlib import import_module
from types import ModuleType

IS_PURE = os.environ.get("KDIST_PURE", "") not in ("", "0")


def compiled_or(reference: str, compiled: str) -> ModuleType:
    """The compiled module, or the reference: that is slower, but correct, where none was built."""
    if not IS_PURE:
        try:
            return import_module(compiled)
        except ImportError:
            pass
    return import_module(reference)
