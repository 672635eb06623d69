"""The conventions that no linter knows, each with examples of what breaks it.

A rule is a function over one parsed file that yields (line, what breaks it). An exception is a line
in EXCEPTIONS with its reason; one that nothing needs any more fails too, so the list only shrinks.
docs/principles.md says why these rules.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

Breach = tuple[int, str]

ROOT = Path(__file__).parents[2]
FOLDERS = ("kdist", "lab", "roles", "playbooks", "tests", "benchmarks", "tools")
FILES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))

FILE_LINES_MAX = 600  # most have near 120: a count is a hint, a seam follows the idea
WORLD = re.compile(
    r"open|(io|codecs|gzip)\.open|(fcntl|glob|secrets|shutil|tempfile|time)\.[^()]+"
    r"|os\.(?!(cpu_count|environ|fspath|getpid|path|sep|strerror)\b)[^()]+"
    r"|os\.path\.(exists|get.time|getsize|is(dir|file|link|mount)|lexists|realpath|samefile)"
    r"|pathlib\.(Posix)?Path(\.[^()]+)?|datetime\.(date|datetime)\.(now|today|utcnow)|uuid\.uuid[14]"
    r"|random\.(?!Random\b)[^()]+|random\.Random\(\)"  # an instance is passed in
)
IDLING = re.compile(r"time\.sleep|pytest\.(importorskip|skip|xfail|mark\.(skip|skipif|xfail))")

# "<file>: <rule>: <what>", as fnmatch has it, and why it stays.
EXCEPTIONS = {
    "kdist/storage/log.py: file size: *": "all that changes a log's state is there, and only there",
    "kdist/client/guard.py: broad except: *": "an application's code, whose result is not needed",
    "kdist/runtime/process.py: broad except: *": "work's edge: `done` gets what it raised",
    "kdist/testing/virtual_process.py: broad except: *": "the same",
    "kdist/runtime/steps.py: broad except: *": "a job's edge: `failed` gets what a step raised",
    "tests/simulator/history.py: broad except: *": "a history's edge: a bug is what it found",
    "kdist/broker/dispatch.py: broad except: *": "a request's edge: crashes.py says what it costs",
    "kdist/broker/authentication.py: broad except: *": "the same, before it is known whose",
    "kdist/controller/term.py: broad except: *": "a term's edge: it says what a bug costs",
    "kdist/spark/load/job.py: broad except: *": "a topic's edge: its load alone is abandoned",
    "kdist/broker/handlers/fetch.py: broad except: *": "that edge, when a waiting fetch is woken",
    "kdist/broker/fast_path/one_partition.py: broad except: *": "the same, on the fast path",
}


def file_size(path: Path, tree: ast.Module) -> Iterator[Breach]:
    """A file with one idea may be long, but is still read in one sitting."""
    if tree.body and (last := tree.body[-1].end_lineno or 0) > FILE_LINES_MAX:
        yield last, f"more than {FILE_LINES_MAX} lines"


def passed_in_world(path: Path, tree: ast.Module) -> Iterator[Breach]:
    """Only `runtime` reads a clock, touches a file or draws a random number."""
    if path.parts[0] == "kdist" and path.parts[1] != "runtime":
        yield from ((line, name) for line, name in uses(tree) if WORLD.fullmatch(name))


def broad_except(path: Path, tree: ast.Module) -> Iterator[Breach]:
    """Who catches everything raises it again; only the edges may do else, as exceptions above."""
    for node in nodes(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            raised = isinstance(node.body[-1], ast.Raise)
            if not raised and re.search(r"\b(everything|Exception|BaseException)\b", caught):
                yield node.lineno, caught


def public_docstring(path: Path, tree: ast.Module) -> Iterator[Breach]:
    """What a package offers to others says what it does; a message's fields may say it alone."""
    for node in tree.body if path.parts[0] == "kdist" else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
        is_message = not decorators.isdisjoint({"struct", "message"})
        if not (node.name.startswith("_") or is_message or ast.get_docstring(node)):
            yield node.lineno, node.name


def idle_test(path: Path, tree: ast.Module) -> Iterator[Breach]:
    """A test neither sleeps nor is skipped; what it waits for is polled in a file beside it."""
    if path.name.startswith("test_"):
        yield from ((line, name) for line, name in uses(tree) if IDLING.fullmatch(name))


def lost_cancellation(path: Path, tree: ast.Module) -> Iterator[Breach]:
    """In 3.11 who is cancelled in `wait_for` as its answer comes goes on: `timeout` it is."""
    if path.parts[0] == "kdist":
        yield from ((line, name) for line, name in uses(tree) if name == "asyncio.wait_for")


def foreign_log_state(path: Path, tree: ast.Module) -> Iterator[Breach]:
    """A log's state is changed by its own methods only."""
    changing = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "update"}
    for node in nodes(tree) if path.parts[0] == "kdist" else ():
        changed: ast.expr | None = None
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = node.value if isinstance(node, ast.Subscript) else node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = node.func.value if node.func.attr in changing else None
        owner = ast.unparse(changed.value) if isinstance(changed, ast.Attribute) else ""
        if changed is not None and re.fullmatch(r"(.*[._])?log", owner):
            yield node.lineno, ast.unparse(changed)


@functools.lru_cache(maxsize=1)  # a file goes through all rules before the next is parsed
def nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


@functools.lru_cache(maxsize=1)
def uses(tree: ast.Module) -> list[Breach]:
    """Imported names, and `open`, as `module.name` where they are used; calls again with `()`."""
    origin, found = {"open": "open"}, []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                origin[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            origin |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in nodes(tree):
        name, call = (node.func, "()") if isinstance(node, ast.Call) else (node, "")
        rest = ""
        while isinstance(name, ast.Attribute):
            name, rest = name.value, f".{name.attr}{rest}"
        if isinstance(name, ast.Name) and name.id in origin:
            found.append((name.lineno, origin[name.id] + rest + call))
    return found


RULES: dict[str, Callable[[Path, ast.Module], Iterator[Breach]]] = {
    rule.__name__.replace("_", " "): rule
    for rule in (
        file_size,
        passed_in_world,
        broad_except,
        public_docstring,
        idle_test,
        lost_cancellation,
        foreign_log_state,
    )
}
EXAMPLES = [  # rule, file, source that breaks it once
    ("file size", "kdist/log.py", "\n" * 600 + "x = 1"),
    ("passed in world", "kdist/log.py", "open('x')"),
    ("passed in world", "kdist/log.py", "import time\nnow = time.time"),
    ("passed in world", "kdist/log.py", "from time import monotonic as m\nm()"),
    ("passed in world", "kdist/log.py", "import os\nos.fsync(1)"),
    ("passed in world", "kdist/log.py", "import os.path\nos.path.exists('x')"),
    ("passed in world", "kdist/log.py", "from os import path\npath.getsize('x')"),
    ("passed in world", "kdist/log.py", "import random as rng\nrng.random()"),
    ("passed in world", "kdist/log.py", "from random import Random\nrng = Random()"),
    ("broad except", "kdist/log.py", "try: f()\nexcept: pass"),
    ("broad except", "kdist/log.py", "try: f()\nexcept (OSError, Exception): pass"),
    ("public docstring", "kdist/log.py", "class Log: pass"),
    ("idle test", "tests/unit/test_log.py", "import time\ntime.sleep(1)"),
    ("idle test", "tests/unit/test_log.py", "import pytest\n@pytest.mark.skip\ndef f(): pass"),
    ("lost cancellation", "kdist/log.py", "import asyncio\nasyncio.wait_for(f(), 1)"),
    ("lost cancellation", "kdist/log.py", "from asyncio import wait_for as w\nw(f(), 1)"),
    ("foreign log state", "kdist/directory.py", "log.end_offset = 1"),
    ("foreign log state", "kdist/directory.py", "self._log.end_offset, n = 1, 2"),
    ("foreign log state", "kdist/directory.py", "del partition.log.segments[1:]"),
    ("foreign log state", "kdist/directory.py", "new_log.renamed_in |= {1}"),
    ("foreign log state", "kdist/directory.py", "log.segments.append(1)"),
]


def breaches(rule: str, path: Path, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What breaks the rule in a file: the exception that would allow it, and a sentence."""
    for line, what in RULES[rule](path, tree):
        yield f"{path}: {rule}: {what}", f"{path}:{line}: {rule}: {what}. {RULES[rule].__doc__}"


def is_exception(key: str) -> bool:
    return any(fnmatchcase(key, exception) for exception in EXCEPTIONS)


@pytest.fixture(scope="module")
def breaches_found() -> list[tuple[str, str]]:
    """Every breach in the tree."""
    trees = ((path.relative_to(ROOT), ast.parse(path.read_text())) for path in FILES)
    return [b for path, tree in trees for rule in RULES for b in breaches(rule, path, tree)]


@pytest.mark.parametrize("rule", RULES)
def test_every_file_keeps_the_rule(rule: str, breaches_found: list[tuple[str, str]]) -> None:
    found = [text for key, text in breaches_found if f": {rule}: " in key and not is_exception(key)]
    assert not found, "\n" + "\n".join(found)


def test_every_exception_is_still_needed(breaches_found: list[tuple[str, str]]) -> None:
    assert [
        e for e in EXCEPTIONS if not any(fnmatchcase(key, e) for key, _ in breaches_found)
    ] == []


@pytest.mark.parametrize(("rule", "path", "source"), EXAMPLES)
def test_each_rule_catches_what_breaks_it(rule: str, path: str, source: str) -> None:
    assert len(list(breaches(rule, Path(path), ast.parse(source)))) == 1


def test_a_broad_except_that_raises_again_is_no_breach() -> None:
    source = "try: f()\nexcept BaseException:\n    g()\n    raise"
    assert not list(breaches("broad except", Path("kdist/log.py"), ast.parse(source)))
