"""Documents are true of the tree: links lead somewhere, commands run, maps show what is there."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kdist.cli.main import kdist
from tools.maps import INDEX, with_page_map

ROOT = Path(__file__).parents[2]
PAGES = {str(p.relative_to(ROOT)): p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
README, ARCHITECTURE = (ROOT / name for name in ("README.md", "ARCHITECTURE.md"))
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    for line in re.split(r" *#.*\n|\n", block)
    if line == "make help" or line.endswith("--help")
]

STANDS_FOR = dict.fromkeys(("N", "P", "ID", "BROKER", "COMMITTED"), "1") | {
    "$KDIST_BROKER": "b1:9092",
    "TOPIC:P": "t:0",
    "COMMAND": "topics",
}


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path) if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_link_between_pages_leads_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(PAGES[name]))
    inner = [link for link in links if not re.match(r"https?:|mailto:", link)]
    assert [link for link in inner if not leads_somewhere(PAGES[name], link)] == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_make_target_in_a_page_exists(name: str) -> None:
    named = re.findall(r"(?:`|^)make ([a-z-]+)", PAGES[name].read_text(), re.MULTILINE)
    assert set(named) <= MAKE_TARGETS


def test_the_readme_fits_in_120_lines() -> None:
    assert len(README.read_text().splitlines()) <= 120


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command: str) -> None:
    program, *arguments = command.split()
    if program == ".venv/bin/kdist":
        program = str(Path(sys.executable).parent / "kdist")
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        [program, *arguments], cwd=ROOT, env=bare, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def kdist_commands(text: str) -> Iterator[list[str]]:
    """The arguments of each `kdist` in a line of shell."""
    lexer = shlex.shlex(re.sub(r"<([\w.]+)>", r"\1", text), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if word.strip("();<>|&"):
            command.append(STANDS_FOR.get(word, word))
            continue
        while command and command[0] in ("until", "do"):
            del command[0]
        if command[1:3] == ["-m", "kdist.cli"]:
            yield command[3:]
        elif command and re.fullmatch(r"(.*/bin/)?kdist", command[0]):
            yield command[1:]
        command = []


def refusal(words: list[str], *, may_lack: bool) -> str:
    """What click says of arguments; `may_lack` allows that required ones are left out."""
    lacks = (click.MissingParameter, click.BadOptionUsage, click.exceptions.NoArgsIsHelpError)
    try:
        kdist.main(words, "kdist", standalone_mode=False)
    except click.ClickException as error:
        return "" if may_lack and isinstance(error, lacks) else error.format_message()
    return ""


@pytest.mark.parametrize(
    ("line", "is_mention"),
    [
        ("until kdist topics lst; do sleep 1; done", True),
        ("date | /opt/kdist/current/bin/kdist configs alter topic t retention.ms=1", True),
        ("python -m kdist.cli topics list --brokers b1:9092", True),
        ("kdist topics describe t --broker b1", True),
        ("kdist log verify", False),
    ],
)
def test_a_wrong_command_in_a_page_is_found(line: str, is_mention: bool) -> None:
    assert [bool(refusal(words, may_lack=is_mention)) for words in kdist_commands(line)] == [True]


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"CHANGELOG.md"}))
def test_every_command_in_a_page_has_arguments_that_it_accepts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of blocks are whole; in a sentence what is required may be left out."""
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)  # they are parsed, and not run
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "kdist").mkdir()
    (tmp_path / "kdist/prod.properties").touch()
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGES[name].read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    mentions = re.findall(r"`((?:\S+/)?kdist [^`]+)`", prose(PAGES[name]))
    found = {
        f"{text}: {refused}"
        for texts, may_lack in ((lines, False), (mentions, True))
        for text in texts
        for words in kdist_commands(text)
        if (refused := refusal(words, may_lack=may_lack))
    }
    assert found == set()


def test_the_list_of_pages_shows_what_is_there() -> None:
    listed = INDEX.read_text()
    assert listed == with_page_map(listed), "`make generate` brings it up to date"


def test_the_layers_drawn_are_the_layers_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [re.sub(r"[()]", "", layer) for layer in contracts["contracts"][0]["layers"]]
    drawn = re.search(r"## The layers.*?```\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
    assert drawn is not None
    assert drawn[1].split("\n")[:-1] == layers


def test_a_package_is_to_come_until_it_is_there() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    assert len(rows) >= 20
    present = {p.stem for p in (ROOT / "kdist").iterdir() if p.is_dir() or p.suffix == ".py"}
    assert {package for package, state in rows if state != "to come"} <= present
    assert not {package for package, state in rows if state == "to come"} & present


def test_the_architecture_fits_in_200_lines() -> None:
    assert len(ARCHITECTURE.read_text().splitlines()) <= 200


def test_every_decision_is_in_the_list() -> None:
    pages = {p.name for p in (ROOT / "docs/decisions").glob("0*.md")}
    listed = re.findall(
        r"\]\((0\d{3}-[\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text()
    )
    assert set(listed) == pages


def _named_in(source: str) -> set[str]:
    """The names of a file's functions and classes, each also behind its class's."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, inner)}
    return found


def test_every_hop_of_a_walk_exists() -> None:
    walks = ARCHITECTURE.read_text().split("## Walks")[1].split("\n## ")[0]
    hops = re.findall(r"`([\w/]+\.py)(?::\s*([\w.]+))?`", walks)
    assert len(hops) > 40
    places = [(ROOT / "kdist" / file, name) for file, name in hops]
    missing = [
        f"{file}: {name}"
        for file, name in places
        if not file.exists() or (name and name not in _named_in(file.read_text()))
    ]
    assert missing == []
