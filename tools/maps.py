"""Writes two maps: of the source files in ARCHITECTURE.md, and of the pages in docs/README.md.

Being generated, a map cannot contradict the files. `make generate` runs this; a test compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAP = re.compile(r"(?<=<!-- map -->\n).*(?=<!-- end of map -->)", re.DOTALL)


def file_map() -> Iterator[str]:
    """A table for each room, a line for each file."""
    files = sorted(ROOT.glob("kdist/**/*.py"), key=lambda path: (path.parent, path.name))
    for room, members in groupby(files, key=lambda path: path.parent):
        yield f"\n### {room.relative_to(ROOT)}/\n\n{nameplate(room / '__init__.py')}\n"
        rows = [
            f"| `{path.name}` | {nameplate(path)} |\n"
            for path in members
            if path.stem != "__init__"
        ]
        if rows:
            yield "".join(["\n| file | what it is for |\n|---|---|\n", *rows])
    yield "\n"


def page_map() -> Iterator[str]:
    """A line for each guide, page about a format, page derived from the code, and measurement."""
    for shelf in ("guides", "formats", "reference", "benchmarks"):
        yield f"\n{shelf.capitalize()}:\n\n"
        for page in sorted(ROOT.glob(f"docs/{shelf}/*.md")):
            title = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            yield f"- [{title}]({page.relative_to(ROOT / 'docs')})\n"
    yield "\n"


def nameplate(path: Path) -> str:
    """What a module says it is for, in the first line of its docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


MAPS: dict[str, Callable[[], Iterator[str]]] = {
    "ARCHITECTURE.md": file_map,
    "docs/README.md": page_map,
}


def with_map(name: str) -> str:
    """The text of a page with its map brought up to date."""
    return MAP.sub(lambda _: "".join(MAPS[name]()), (ROOT / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    for name in MAPS:
        (ROOT / name).write_text(with_map(name), encoding="utf-8")
