"""The release on every host: the inventory's version, complete, and writable by root alone."""

from __future__ import annotations

import json
import re

from tests.deploy.deployed import KDIST, Member


def release(host: Member) -> str:
    return host.says("readlink --canonicalize /opt/kdist/current")


def test_the_wanted_release_is_the_current_one(host: Member) -> None:
    name = host.says("readlink /opt/kdist/current")
    assert re.fullmatch(rf"releases/{re.escape(host['kdist_version'])}-[0-9a-f]{{12}}", name)
    assert host.says(f"{KDIST} --version") == f"kdist {host['kdist_version']}"


def test_the_release_says_what_it_consists_of(host: Member) -> None:
    told = json.loads(host.says(f"cat {release(host)}/RELEASE.json"))
    assert told["version"] == host["kdist_version"]
    assert len(told["digest"]) == 64
    assert release(host).endswith(told["digest"][:12])


def test_nobody_may_write_into_the_release(host: Member) -> None:
    assert host.says(f"find {release(host)} -not -type l -perm /0222 -print -quit") == ""
    assert host.says(f"find {release(host)} -not -user root -print -quit") == ""


def test_the_releases_packages_fit_together(host: Member) -> None:
    assert host.works(f"{release(host)}/bin/python -m pip --disable-pip-version-check check")


def test_the_bundle_is_not_kept(host: Member) -> None:
    assert host.says("ls /opt/kdist/bundles") == ""
