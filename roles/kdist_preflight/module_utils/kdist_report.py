"""What a host has against what kdist wants of it: rows of a table, with a verdict each (pure).

`ok` is as wanted; `mind` can be lived with: what is not applied there, or what is absent; `refused`
is what kdist does not run on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

OK, MIND, REFUSED = "ok", "mind", "refused"
ROOT = "root"
MAY = ("may be set", "may not be set")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    subject: str
    found: str
    wanted: str
    verdict: str


def rows(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Row]:
    """The table of a host."""
    yield from platform_rows(found, wanted)
    yield from applicable_rows(found, wanted)
    for disk in found["disks"]:
        yield disk_row(disk)
    if found["user"] != ROOT:
        return  # nobody else is shown who listens on a port
    for port, (name, user) in sorted(found["ports"].items()):
        ours = not user or user.startswith(tuple(wanted["units"]))
        verdict = OK if ours else REFUSED
        yield Row(f"port {port} ({name})", user or "free", "free, or ours", verdict)


def platform_rows(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Row]:
    """What decides whether kdist runs here at all."""
    yield Row("user", found["user"], ROOT, OK if found["user"] == ROOT else REFUSED)
    known = found["os"].split()[0] in wanted["os"]
    yield Row("system", found["os"], " or ".join(wanted["os"]), OK if known else REFUSED)
    for subject in ("kernel", "python"):
        new = numbers(found[subject]) >= numbers(wanted[subject])
        yield Row(subject, found[subject], f">= {wanted[subject]}", OK if new else REFUSED)
    enough = found["memory_mb"] >= wanted["memory_mb"]
    memory = (f"{found['memory_mb']} MB", f">= {wanted['memory_mb']} MB")
    yield Row("memory", *memory, OK if enough else MIND)
    address, is_here = found["address"]
    here = "here" if is_here else "not of this host"
    yield Row(f"address {address}", here, "here", OK if is_here else REFUSED)
    yield Row("time", *in_words(found["synchronised"], "synchronised", "not synchronised"))


def applicable_rows(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Row]:
    """What the roles would set, if they may."""
    yield Row("clock", *in_words(found["clock"], *MAY))
    yield Row("kernel values", *in_words(found["sysctl"], *MAY))
    yield Row("block devices", *in_words(found["sysfs"], *MAY))
    yield Row("immutable mount points", *in_words(found["immutable"], *MAY))
    enough = found["nofile_max"] >= wanted["nofile"]
    verdict = OK if enough else MIND
    yield Row("open files", f"{found['nofile_max']}", f">= {wanted['nofile']}", verdict)


def in_words(claim: bool, words: str, denied: str) -> tuple[str, str, str]:
    return (words, words, OK) if claim else (denied, words, MIND)


def disk_row(disk: Mapping[str, Any]) -> Row:
    """A disk by its name: how large it is. Whose it is, kdist_disks says."""
    subject = f"disk {disk['id']} ({disk['device']})"
    if not disk["bytes"]:
        return Row(subject, "absent", "present", MIND)
    return Row(subject, f"{disk['bytes'] / 1e9:.1f} GB", "present", OK)


def numbers(version: str) -> tuple[int, ...]:
    """`6.1.0-28-amd64` as (6, 1), which is as far as it matters."""
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


def table(found: Iterable[Row]) -> list[str]:
    """The rows as lines of equal columns."""
    lines = [("", "found", "wanted", "")]
    lines += [(row.subject, row.found, row.wanted, row.verdict) for row in found]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True)
        ).rstrip()
        for line in lines
    ]
