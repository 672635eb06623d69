"""The filter that reads the roles' variables in an inventory and says which are misspelt or wrong.

Ansible passes over a name that nobody reads, and judges a value when its role's turn has come, on
hosts that other roles have changed by then. Here it is done before any host is reached: names are
compared with those that roles and playbooks mention, values with the roles' argument specs.
"""

from __future__ import annotations

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
SIMILAR = 0.8
IN_WORDS = {"int": "a whole number", "bool": "true or false", "list": "a list", "dict": "a mapping"}


def options(tree: Path = TREE) -> dict[str, Option]:
    """What the argument specs of all roles say of each variable."""
    pages = (yaml.safe_load(p.read_text()) for p in tree.glob("roles/*/meta/argument_specs.yml"))
    entries = [entry for page in pages for entry in page["argument_specs"].values()]
    pairs = (pair for entry in entries for pair in (entry.get("options") or {}).items())
    # Those that are raw in a spec have rules of their own.
    return {name: option for name, option in pairs if option["type"] != "raw"}


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
