"""Two maps: of the source files, for docs/reference/files.md, and of the pages, in docs/README.md.

Being generated, a map cannot contradict the files. `make generate` writes both; tests compare.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tools.page_text import page_head

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "README.md"
MAP = re.compile(r"(?<=<!-- map -->\n).*(?=<!-- end of map -->)", re.DOTALL)
FILES_INTRO = """Every source file with what it is for: the first line of its docstring.
[ARCHITECTURE](../../ARCHITECTURE.md) says which package may import which."""


def files_page() -> str:
    """A table for each package, a line for each file."""
    files = sorted(ROOT.glob("kdist/**/*.py"), key=lambda path: (path.parent, path.name))
    parts = [page_head("Source files", FILES_INTRO)]
    for package, members in groupby(files, key=lambda path: path.parent):
        parts.append(f"## {package.relative_to(ROOT)}/\n\n{purpose(package / '__init__.py')}\n")
        rows = [
            f"| `{path.name}` | {purpose(path)} |\n" for path in members if path.stem != "__init__"
        ]
        if rows:
            parts.append("".join(["| file | what it is for |\n|---|---|\n", *rows]))
    return "\n".join(parts)


def page_map() -> Iterator[str]:
    """A line for each guide, page about a format, page derived from the code, and measurement."""
    for folder in ("guides", "formats", "reference", "benchmarks"):
        yield f"\n{folder.capitalize()}:\n\n"
        for page in sorted(ROOT.glob(f"docs/{folder}/*.md")):
            title = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            yield f"- [{title}]({page.relative_to(ROOT / 'docs')})\n"
    yield "\n"


def purpose(path: Path) -> str:
    """What a module says it is for, in the first line of its docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


def with_page_map(text: str) -> str:
    """The text of docs/README.md with its map brought up to date."""
    return MAP.sub(lambda _: "".join(page_map()), text)


if __name__ == "__main__":
    INDEX.write_text(with_page_map(INDEX.read_text(encoding="utf-8")), encoding="utf-8")
