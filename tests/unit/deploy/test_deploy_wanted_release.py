"""Which build of a release is wanted, and which ones are still in use."""

from __future__ import annotations

import io
import json
import platform
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_plays import play, script
from deploy_plugins import ROOT, load

choose = load("roles/kdist_release/filter_plugins/kdist_release.py").kdist_release_choose

HOST = {"hosts": "a", "gather_facts": False}
ONE, TWO = "a" * 64, "b" * 64  # digests of two builds of one version


HERE = {
    "python": ".".join(platform.python_version_tuple()[:2]),
    "platform": f"{platform.machine()} {' '.join(platform.libc_ver())}",
}
OTHER = HERE | {"python": "3.99"}


def described(digest: str, **fits: str) -> dict[str, Any]:
    """A build of version 1.0 for this machine's Python, or another one."""
    return {"version": "1.0", "digest": digest} | HERE | fits


def bundle(directory: Path, digest: str, place: str = "dist", **fits: str) -> None:
    """A bundle of version 1.0 whose wheels have this digest."""
    (directory / place).mkdir(parents=True, exist_ok=True)
    text = json.dumps(described(digest, **fits)).encode()
    with tarfile.open(directory / place / "kdist-1.0.tar", "w") as tar:
        member = tarfile.TarInfo("RELEASE.json")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))


def installed(directory: Path, digest: str, **fits: str) -> None:
    release = directory / "root/releases" / f"1.0-{digest[:12]}"
    release.mkdir(parents=True)
    (release / "RELEASE.json").write_text(json.dumps(described(digest, **fits)))


def wanted(directory: Path) -> tuple[int, str]:
    """The status of role kdist_release's look at a host, and what it found to be wanted."""
    look = {"name": "kdist_release", "tasks_from": "preflight"}
    told = "{{ kdist_release_name }} {{ kdist_release_is_staged }} {{ kdist_release_digest }}"
    write = {"content": told, "dest": str(directory / "found"), "mode": "0644"}
    tasks = [{"ansible.builtin.include_role": look}, {"ansible.builtin.copy": write}]
    done = play(
        directory,
        HOST | {"tasks": tasks},
        kdist_version="1.0",
        kdist_root=str(directory / "root"),
        kdist_release_bundles=str(directory / "dist"),
        kdist_release_python=sys.executable,
    )
    found = directory / "found"
    return done.returncode, found.read_text() if found.exists() else done.stdout


@pytest.mark.slow
def test_a_version_that_was_built_again_is_another_release(tmp_path: Path) -> None:
    installed(tmp_path, ONE)
    bundle(tmp_path, TWO)
    assert wanted(tmp_path) == (0, f"1.0-{TWO[:12]} False {TWO}")


@pytest.mark.slow
def test_an_installed_release_needs_no_bundle(tmp_path: Path) -> None:
    installed(tmp_path, ONE)
    assert wanted(tmp_path) == (0, f"1.0-{ONE[:12]} True {ONE}")


@pytest.mark.slow
def test_a_bundle_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    """Else the run would go on with the build before, and end in green."""
    installed(tmp_path, ONE)
    bundle(tmp_path, TWO)
    whole = (tmp_path / "dist/kdist-1.0.tar").read_bytes()
    (tmp_path / "dist/kdist-1.0.tar").write_bytes(whole[:520])
    status, said = wanted(tmp_path)
    assert status != 0
    assert "Unexpected EOF in archive" in said


@pytest.mark.slow
def test_each_host_gets_the_build_for_its_python_from_directories_below(tmp_path: Path) -> None:
    bundle(tmp_path, ONE, **OTHER)
    bundle(tmp_path, TWO, "dist/here")
    assert wanted(tmp_path) == (0, f"1.0-{TWO[:12]} False {TWO}")


@pytest.mark.slow
def test_a_host_whose_distribution_was_upgraded_is_refused_until_there_is_a_build_for_it(
    tmp_path: Path,
) -> None:
    """Its release passed for installed, and no broker started after the reboot."""
    bundle(tmp_path, ONE, **OTHER)
    installed(tmp_path, ONE, **OTHER)
    status, said = wanted(tmp_path)
    assert status != 0
    told = " ".join(said.split())
    assert f"a: there is no kdist 1.0 for Python {HERE['python']} on {HERE['platform']}" in told
    assert "dist/kdist-1.0.tar is for Python 3.99 on" in told


@pytest.mark.parametrize(
    ("platform_of", "python", "does"),
    [
        ("x86_64 glibc 2.36", "3.11", True),
        ("x86_64 glibc 2.9", "3.11", True),
        ("x86_64 glibc 2.41", "3.11", False),
        ("aarch64 glibc 2.36", "3.11", False),
        ("x86_64 glibc 2.36", "3.13", False),
    ],
)
def test_a_build_fits_its_own_python_and_a_c_library_that_is_not_older(
    platform_of: str, python: str, does: bool
) -> None:
    host = {"python": "3.11", "platform": "x86_64 glibc 2.36", "releases": []}
    built = {"version": "1.0", "digest": ONE, "python": python, "platform": platform_of}
    found = choose(host, [built | {"file": "dist/kdist-1.0.tar"}], "1.0")
    assert (found["bundle"] == "dist/kdist-1.0.tar") is does
    assert (found["refusal"] == "") is does


def test_a_rollback_gets_the_build_that_the_host_had_and_no_other() -> None:
    had = described(ONE) | {"name": f"1.0-{ONE[:12]}", "path": "/opt/kdist/releases/1.0-a"}
    built = described(TWO) | {"file": "dist/kdist-1.0.tar"}
    found = choose(HERE | {"releases": [had]}, [built], "1.0", had["name"])
    assert (found["name"], found["is_staged"], found["digest"]) == (had["name"], True, ONE)
    gone = choose(HERE | {"releases": []}, [built], "1.0", had["name"])
    assert f"there is no {had['name']} for" in gone["refusal"]


@pytest.mark.slow
def test_a_search_for_releases_in_use_that_fails_ends_before_any_is_removed(
    tmp_path: Path,
) -> None:
    """What is not found would be removed, from under a broker that runs it."""
    script(tmp_path / "find", "echo /opt/kdist/releases/1.0-x; exit 1\n")
    (tmp_path / "brokers").mkdir()
    text = (ROOT / "roles/kdist_release/tasks/install.yml").read_text()
    steps = yaml.safe_load(text.replace("/etc/kdist/brokers", str(tmp_path / "brokers")))
    names = [step["name"] for step in steps]
    search = names.index("Find the releases that brokers can run")
    assert search < names.index("Remove releases older than those to keep")
    assert play(tmp_path, HOST | {"tasks": steps[search - 1 : search + 1]}).returncode != 0
    (tmp_path / "brokers").rmdir()
    assert play(tmp_path, HOST | {"tasks": steps[search - 1 : search + 1]}).returncode == 0
