"""Reading and writing whole message sets: compiled where it was built, else the reference.

The functions are documented in `_reference_messages.py`.
"""

from __future__ import annotations

from kdist.records import _reference_messages
from kdist.records._reference_messages import Columns, Written
from kdist.wire.pure import IS_PURE

__all__ = ["Columns", "Written", "read_columns", "write_messages"]

read_columns = _reference_messages.read_columns
write_messages = _reference_messages.write_messages

if not IS_PURE:
    try:
        from kdist.records import _compiled_messages
    except ImportError:
        pass  # not built on this host: the reference is slower, but correct
    else:
        read_columns = _compiled_messages.read_columns
        write_messages = _compiled_messages.write_messages
