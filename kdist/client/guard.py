"""Calls what the application has hung into a client: its errors are logged, and break nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from kdist.errors import WrongType

logger = logging.getLogger(__name__)

T = TypeVar("T")
_QUIET_S = 60.0


class Guard:
    """Of each function, the first error in a minute is logged. Any thread may call."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._quiet_until_s: dict[str, float] = {}

    def call(self, otherwise: T, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns; `otherwise` if it raises an `Exception`.

        Also if `otherwise` is not None, and what is returned is of another type.
        """
        try:
            found = function(*arguments)
            if otherwise is not None and not isinstance(found, type(otherwise)):
                raise WrongType(f"it returned {found!r}, and not a {type(otherwise).__name__}")
            return found
        except Exception:
            name = getattr(function, "__qualname__", repr(function))
            now_s = self._now_s()
            if now_s >= self._quiet_until_s.get(name, now_s):
                self._quiet_until_s[name] = now_s + _QUIET_S
                logger.exception("%s failed, and the client goes on without it", name)
            return otherwise
