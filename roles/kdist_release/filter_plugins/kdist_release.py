"""The filter that chooses a host's release: one for its Python and its C library (pure).

A release is wheels, some of them compiled, in a virtual environment: it runs with the Python that
it was built for alone, and with a C library that is not older. So hosts of two distributions have
two builds of one version, and a host whose distribution was upgraded has to get another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Release = Mapping[str, Any]


def kdist_release_choose(
    host: Mapping[str, Any], bundles: Iterable[Release], version: str, pinned: str = ""
) -> dict[str, Any]:
    """{name, digest, bundle, is_staged, refusal} for a host of {python, platform, releases}.

    `bundles` are the control host's of this version, each a RELEASE.json with its `file`; `pinned`
    is a release by name. Without a bundle that fits, the newest installed one is taken.
    """
    built = list(bundles)
    here = [each for each in host["releases"] if fits(each, host)]
    fitting = [each for each in built if fits(each, host)]
    named = [each["name"] for each in here if each["version"] == version]
    name = pinned or next(iter([*map(name_of, fitting), *named]), "")
    staged = next((each for each in here if each["name"] == name), None)
    bundle = next((each for each in fitting if name_of(each) == name), None)
    found = staged or bundle
    return {
        "name": name,
        "digest": found["digest"] if found else "",
        "bundle": bundle["file"] if bundle else "",
        "is_staged": staged is not None,
        "refusal": "" if found else refusal(host, built, version, pinned),
    }


def name_of(release: Release) -> str:
    """`0.1.0-1a2b3c4d5e6f`: by version and contents, so one that was built again is another one."""
    return f"{release['version']}-{release['digest'][:12]}"


def fits(release: Release, host: Mapping[str, Any]) -> bool:
    """Whether the release runs with the host's Python and C library."""
    machine, library, least = release["platform"].split()
    has_machine, has_library, has = host["platform"].split()
    return bool(
        release["python"] == host["python"]
        and (machine, library) == (has_machine, has_library)
        and numbers(least) <= numbers(has)
    )


def numbers(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]


def refusal(host: Mapping[str, Any], bundles: list[Release], version: str, pinned: str) -> str:
    """Why the host gets none, and what to do."""
    others = [f"{each['file']} is for {platform_of(each)}" for each in bundles]
    others += [f"{each['path']} is for {platform_of(each)}" for each in host["releases"]]
    mine = f"Python {host['python']} on {host['platform']}"
    wanted = pinned or f"kdist {version}"
    return (
        f"there is no {wanted} for {mine}, neither on the control host nor here"
        f"{''.join(f'; {each}' for each in others)}: `tools/build_release.sh` makes one where it"
        " runs, or kdist_version names another release"
    )


def platform_of(release: Release) -> str:
    return f"Python {release['python']} on {release['platform']}"


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kdist_release_choose": kdist_release_choose}
