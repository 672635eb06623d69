"""Writes each default of a role, from its defaults/main.yml, into its argument_specs and README.

So it stands once. `test_generated.py` fails if `make generate` would change a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[1] / "roles"

_VALUE = re.compile(r"^(\w+):(.*\n(?:  .*\n)*)", re.MULTILINE)
_DEFAULT = re.compile(r"^        default:.*\n(?:          .*\n)*", re.MULTILINE)
_OPTION = re.compile(r"^      (\w+):\n(?:        (?:type|elements): .*\n)+", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` \| .*? \|", re.MULTILINE)


def argument_specs(specs: str, defaults: str) -> str:
    """The specs with the defaults, as they are written there (pure)."""
    texts = {name: text.replace("\n  ", "\n          ") for name, text in _VALUE.findall(defaults)}

    def with_default(option: re.Match[str]) -> str:
        text = texts.get(option[1])
        return option[0] if text is None else f"{option[0]}        default:{text}"

    return _OPTION.sub(with_default, _DEFAULT.sub("", specs))


def readme(text: str, defaults: dict[str, Any]) -> str:
    """The README with the defaults in its table of variables (pure)."""

    def row(found: re.Match[str]) -> str:
        name = found[1]
        return f"| `{name}` | {shown(defaults[name])} |" if name in defaults else found[0]

    return _ROW.sub(row, text)


def shown(default: Any) -> str:
    """A default in a table (pure)."""
    if isinstance(default, dict) and default:
        return "see `defaults/main.yml`"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def pages() -> Iterator[tuple[Path, str]]:
    """Each file, and what shall be in it."""
    for path in sorted(ROLES.glob("*/defaults/main.yml")):
        role, defaults = path.parents[1], path.read_text()
        specs, page = role / "meta/argument_specs.yml", role / "README.md"
        yield specs, argument_specs(specs.read_text(), defaults)
        yield page, readme(page.read_text(), dict(yaml.safe_load(defaults) or {}))


if __name__ == "__main__":
    for file, text in pages():
        file.write_text(text)
