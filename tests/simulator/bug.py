"""What replaces something of the code for a while: a known bug, or a witness of what it does."""

from __future__ import annotations

import ast
import enum
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_MET = "_planted_place_met"


class Bug(NamedTuple):
    """`make` gets what `name` of `owner` is, and returns what replaces it."""

    owner: Any
    name: str
    make: Callable[[Any], Any]

    @property
    def place(self) -> object:
        """Another bug of the same place cannot be there at the same time."""
        return self.owner, self.name


class Spot(enum.StrEnum):
    """What a history must have for an `Edit` to be met, and for its harm to be seen."""

    LATE = "messages that are late, or come together"
    LOSS = "a partition that has lost something, and goes on"
    BELIEF = "an ISR that is not what the code takes it for"
    AIMED = "a failure at that very moment"
    TRIM = "DeleteRecords"
    GIVEN = "what groups and consumers are given"
    EPOCHS = "producers' epochs and sequences"
    LIMITS = "something at its limit"
    APIS = "an API or a setting that is rare"
    ERRORS = "a calm cluster that refuses"
    THREADS = "work of a thread that is half done"
    ZOOKEEPER = "ZooKeeper's losses, a coordinator that loads"


class Edit(NamedTuple):
    """A bug of one place: where `function`'s source has `old`, it has `new`.

    Whoever has a reference to the function meets it. A property is named by its `fget`.
    """

    spot: Spot
    function: Any
    old: str
    new: str

    @property
    def place(self) -> object:
        """As `Bug.place`."""
        return self.sound

    @property
    def sound(self) -> FunctionType:
        """The function as it is written, within whatever wraps it."""
        function = self.function.fget if isinstance(self.function, property) else self.function
        found = inspect.unwrap(getattr(function, "__func__", function))
        assert isinstance(found, FunctionType)
        return found

    def code(self, note: str) -> CodeType:
        """The function's code with the bug in it, and a call of `note`, when it is met."""
        sound = self.sound
        source = textwrap.dedent(inspect.getsource(sound))
        assert source.count(self.old) == 1, f"{sound.__qualname__} has no such place: {self.old}"
        line = source[: source.index(self.old)].count("\n") + 1
        tree = ast.parse(source.replace(self.old, self.new))
        _precede(tree, line, f"{note}()")
        ast.increment_lineno(tree, sound.__code__.co_firstlineno - 1)
        flags = annotations.compiler_flag  # as all modules have it
        found = compile(tree, sound.__code__.co_filename, "exec", flags, dont_inherit=True)
        return next(each for each in found.co_consts if isinstance(each, CodeType))


def _precede(tree: ast.Module, line: int, call: str) -> None:
    """Have the statement that begins at the line, or contains it, preceded by another."""
    statements, place = tree.body, 0
    for node in ast.walk(tree):  # the outer ones first
        for name in ("body", "orelse", "finalbody"):
            found = getattr(node, name, None)
            for number, each in enumerate(found if isinstance(found, list) else ()):
                if each.lineno <= line <= (each.end_lineno or 0):
                    statements, place = found, number
    assert statements is not tree.body, "it is in the function's head"
    statements[place:place] = ast.parse(call).body


Planted = Bug | Edit | tuple[Bug | Edit, ...]
"""Some are in several places."""


def places_of(planted: Planted) -> tuple[Bug | Edit, ...]:
    """Each for itself."""
    return (planted,) if isinstance(planted, Bug | Edit) else planted


@contextmanager
def patched(*bugs: Bug | Edit) -> Iterator[Counter[int]]:
    """Within the block all of them are there. Yields how often each `Edit` is met, by its number
    among them."""
    met = Counter[int]()
    with ExitStack() as stack:
        for number, each in enumerate(bugs):
            if isinstance(each, Edit):
                function, note = each.sound, f"{_MET}_{number}"
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = each.code(note)
                function.__globals__[note] = partial(met.update, (number,))
                stack.callback(function.__globals__.pop, note)
            else:
                owner, name, make = each
                sound = vars(owner)[name]
                setattr(owner, name, make(getattr(owner, name)))
                stack.callback(setattr, owner, name, sound)
        yield met
