"""Documents are true of the tree: links lead somewhere, commands run, every page is reached."""

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

ROOT = Path(__file__).parents[2]
PAGES = {str(p.relative_to(ROOT)): p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]}
README, ARCHITECTURE = (ROOT / name for name in ("README.md", "ARCHITECTURE.md"))
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
SHELL = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
COMMANDS = [
    line
    for block in SHELL
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


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command: str) -> None:
    program, *arguments = command.split()
    if program == "kdist":
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


COLUMNS_MAX = 160
WIDE = {  # a list that may only shrink
    "CHANGELOG.md",
    "docs/benchmarks/simulator.md",
    "docs/formats/load-output.md",
    "docs/guides/load.md",
    "docs/guides/mirror.md",
    "docs/runbooks/MirrorRefused.md",
}


def wide_lines(page: Path) -> list[str]:
    lines = prose(page).splitlines()
    return [each for each in lines if len(each) > COLUMNS_MAX and not each.startswith("|")]


@pytest.mark.parametrize("name", sorted(name for name in PAGES if "/reference/" not in name))
def test_a_pages_lines_fit_into_a_window(name: str) -> None:
    """Rows of tables are as long as they are."""
    assert bool(wide_lines(PAGES[name])) == (name in WIDE)


ADVICE = [  # the reference follows from the code
    *(page for name, page in PAGES.items() if not name.startswith(("docs/reference", "CHANGELOG"))),
    *ROOT.glob("kdist/**/*.py"),
]


def test_what_is_advised_to_install_is_this_tree() -> None:
    """There is no release of kdist on an index."""
    of_an_index = re.compile(r"""pip install (?:--?\S+ )*['"]?kdist\b""")
    found = [path for path in ADVICE if of_an_index.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_an_extra_that_is_advised_exists() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in ADVICE)
    named = re.findall(r"""pip install (?:--?\S+ )*['"]?\.\[(\w+)\]""", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"spark", "deploy"} <= set(named) <= project["optional-dependencies"].keys()


def test_a_virtual_environment_is_made_before_the_readme_uses_it() -> None:
    commands = [line for block in SHELL for line in block.splitlines()]
    assert re.fullmatch(r"python3 -m venv \.venv\b.*", commands[0])
    assert not [line for line in commands if ".venv/bin/kdist" in line]


def examples(page: Path) -> str:
    """A page's Python as one module, each line where it is on the page."""
    kept: list[str] = []
    is_code = False
    for line in page.read_text(encoding="utf-8").splitlines():
        is_code = is_code and line != "```"
        kept.append(line if is_code else "")
        is_code = is_code or line == "```python"
    return "\n".join([*kept, ""])


@pytest.mark.slow
def test_every_example_has_types_that_mypy_accepts(tmp_path: Path) -> None:
    """Strictly; each page is a module, as its examples share their names."""
    modules = {name: code for name, page in PAGES.items() if (code := examples(page)).strip()}
    assert len(modules) >= 7
    for name, code in modules.items():
        module = re.sub(r"\W", "_", name)
        (tmp_path / f"{module}.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *sorted(tmp_path.iterdir())],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_page_is_reached_from_the_list_of_documents() -> None:
    """By links from page to page: what nobody leads to, nobody reads."""
    reached: set[Path] = set()
    ahead = [(ROOT / "docs/README.md").resolve()]
    while ahead:
        page = ahead.pop()
        if page in reached or page not in PAGES.values():
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose(page))
        ahead += [(page.parent / link).resolve() for link in links]
    assert sorted(name for name, page in PAGES.items() if page not in reached) == []


def test_every_guide_is_on_a_path_of_the_list_of_documents() -> None:
    listed = (ROOT / "docs/README.md").read_text()
    guides = sorted(page.name for page in (ROOT / "docs/guides").glob("*.md"))
    assert [name for name in guides if f"](guides/{name}" not in listed] == []


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
