"""What replaces something of the code for a while: a known bug, or a witness of what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple


class Bug(NamedTuple):
    """`make` gets what `name` of `owner` is, and returns what replaces it."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


Planted = Bug | tuple[Bug, ...]
"""Some are in several places."""


@contextmanager
def patched(*bugs: Bug) -> Iterator[None]:
    """Within the block all of them are replaced."""
    with ExitStack() as stack:
        for owner, name, make in bugs:
            sound = vars(owner)[name]
            setattr(owner, name, make(getattr(owner, name)))
            stack.callback(setattr, owner, name, sound)
        yield
