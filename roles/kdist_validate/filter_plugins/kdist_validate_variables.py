"""The filter that reads the roles' variables in an inventory and says which are misspelt or wrong.

Ansible passes over a name that nobody reads, and judges a value when its role's turn has come, on
hosts that other roles have changed by then. Here it is done before any host is reached: names are
compared with those that roles and playbooks mention, values with the roles' argument specs.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from jinja2 import Undefined

Option = Mapping[str, Any]

TREE = Path(__file__).parents[3]
FOLDERS = ("roles", "playbooks")
PAGES = {".yml", ".j2", ".py"}
NAME = re.compile(r"\bkdist_\w+")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")
STABLE_DEVICE = re.compile(r"/dev/disk/by-[a-z]+/[^/\s]+")
IS_TEXT = re.compile(r"text|a list|(?!`true`, `false`$)`")  # what the page of settings allows
CODE = re.compile(r"`([^`]+)`")
SIMILAR = 0.8
IN_WORDS = {"int": "a whole number", "bool": "true or false", "list": "a list", "dict": "a mapping"}


def options(tree: Path = TREE) -> dict[str, Option]:
    """What the argument specs of all roles say of each variable."""
    pages = (yaml.safe_load(p.read_text()) for p in tree.glob("roles/*/meta/argument_specs.yml"))
    entries = [entry for page in pages for entry in page["argument_specs"].values()]
    pairs = (pair for entry in entries for pair in (entry.get("options") or {}).items())
    # Those that are raw in a spec have rules of their own.
    return {name: option for name, option in pairs if option["type"] != "raw"}


@functools.cache
def text_settings(tree: Path = TREE) -> frozenset[str]:
    """The settings of brokers, topics, mirrors, loads and agents that are texts, by their page.

    Those of one flow are without `flow.<name>.`, as kdist_mirror_flow_config has them.
    """
    found: set[str] = set()
    place = None
    for line in (tree / "docs/reference/settings.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if "Allowed" in cells:
            place = cells.index("Allowed")
        elif not line.startswith("|"):
            place = None
        elif place is not None and place < len(cells) and IS_TEXT.match(cells[place]):
            named = (name for cell in cells[: max(1, place - 1)] for name in CODE.findall(cell))
            found.update(name.removeprefix("flow.<name>.") for name in named)
    return frozenset(found)


def mentioned(tree: Path = TREE) -> set[str]:
    """Every name in the roles and playbooks: variables, facts, what tasks register."""
    files = (path for folder in FOLDERS for path in (tree / folder).rglob("*"))
    return {n for f in files if f.suffix in PAGES for n in NAME.findall(f.read_text())}


def wrong(
    variables: Mapping[str, Any], known: Mapping[str, Option], names: set[str]
) -> Iterator[str]:
    """What is wrong with one host's variables. What hangs on a fact of the host is left to it."""
    for name in sorted(name for name in variables if name.startswith("kdist_")):
        if name not in names:
            close = get_close_matches(name, known, 1, SIMILAR)
            yield f"nothing reads {name}" + (f"; is it {close[0]}?" if close else ".")
        elif name in known and not isinstance(value := variables[name], Undefined):
            found = list(wrong_value(name, known[name], value))
            found += not_text(name, known[name], value) if not found else ()
            yield from found
            if not found and name in RULES:
                yield from (f"{name} {sentence}." for sentence in RULES[name](value, variables))


def wrong_value(name: str, option: Option, value: Any) -> Iterator[str]:
    """A value of another kind than its role's argument spec wants."""
    judged = ArgumentSpecValidator({name: dict(option)}).validate({name: value})
    if not judged.error_messages:
        return
    if choices := option.get("choices"):
        yield f"{name} is {value!r}; it is one of {', '.join(map(str, choices))}."
    elif option["type"] in ("list", "dict"):  # which may hold a password: it is not shown
        yield f"{name}: {judged.error_messages[0].rstrip('.')}."
    else:
        yield f"{name} is {value!r}; it is {IN_WORDS.get(option['type'], option['type'])}."


def not_text(name: str, option: Option, value: Any) -> Iterator[str]:
    """Texts, also within lists and mappings, that YAML has turned into something else.

    `no` is false, 0123 is 83, 12:30 is 750, 2013-01-01 a date; Ansible would write that as text.
    """
    kind, inner = option.get("type"), option.get("options") or {}
    if kind in ("str", "path") and name != "kdist_version" and value is not None:
        if not isinstance(value, str):
            yield f"{name} is {made_of(value)}; put quotes around it."
    elif kind == "list" and isinstance(value, list):
        item = {"type": option.get("elements"), "options": inner}
        for each in value:
            yield from not_text(name, item, each)
    elif kind == "dict" and isinstance(value, Mapping):
        for key, each in value.items():
            if inner:
                yield from not_text(f"{name}: {key}", inner.get(key, {}), each)
            else:
                yield from not_setting(f"{name}: {key}", str(key), each)


def not_setting(name: str, setting: str, value: Any) -> Iterator[str]:
    """A value of a mapping of settings that no text stands for, or not the one that was meant."""
    if isinstance(value, list):
        for each in value:
            if not isinstance(each, str):
                yield f"{name} has {made_of(each)}; put quotes around it."
            elif "," in each:
                yield f"{name} has an item with a comma; commas separate items."
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from not_setting(f"{name}: {key}", str(key), each)
    elif not isinstance(value, str) and (
        is_text_setting(setting) or not isinstance(value, int | float)
    ):
        yield f"{name} is {made_of(value)}; put quotes around it."


def is_text_setting(name: str) -> bool:
    """Whether kdist has a setting of that name whose value is text."""
    texts = text_settings()
    of_one_topic = name.startswith("topic.") and any(name.endswith(f".{each}") for each in texts)
    return name in texts or of_one_topic


def made_of(value: Any) -> str:
    """What YAML has made of a text; other values than words are not shown, as for passwords."""
    if value is None or isinstance(value, bool):
        return f"{value}, which YAML has made of an unquoted word"
    kind = "a number" if isinstance(value, int | float) else f"a {type(value).__name__}"
    return f"{kind} by YAML, and no text"


def version(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"is the number {value}, and 1.10 would be the number 1.1; put it in quotes"
    elif not VERSION.fullmatch(value):
        yield f"is {value!r}, which is no release's name"


def networks(value: list[Any], _: Mapping[str, Any]) -> Iterator[str]:
    for each in value:
        try:
            ipaddress.ip_network(str(each))
        except ValueError as error:
            yield f"has {str(each)!r}: {error}"


def log_device(value: str, variables: Mapping[str, Any]) -> Iterator[str]:
    if value and not STABLE_DEVICE.fullmatch(value):
        yield f"is {value}, which may change with a boot; use its name under /dev/disk/by-id"
    disks = variables.get("kdist_disks")
    if isinstance(disks, list) and value in [disk.get("device") for disk in disks]:
        yield f"is {value}, which kdist_disks has for records"


RULES: dict[str, Callable[[Any, Mapping[str, Any]], Iterator[str]]] = {
    "kdist_version": version,
    "kdist_firewall_admins": networks,
    "kdist_firewall_clients": networks,
    "kdist_zookeeper_log_device": log_device,
}


def kdist_validate_variables(
    hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Any]
) -> list[str]:
    """The filter: `hostvars | kdist_validate_variables(groups)`; of many hosts it is said once."""
    known, names = options(), mentioned()
    told: dict[str, list[str]] = {}
    for host in sorted(map(str, groups["all"])):
        for sentence in wrong(hostvars[host], known, names):
            told.setdefault(sentence, []).append(host)
    return [f"{', '.join(hosts)}: {sentence}" for sentence, hosts in told.items()]


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kdist_validate_variables": kdist_validate_variables}
