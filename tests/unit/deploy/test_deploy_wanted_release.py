"""Which build of a release is wanted, and which ones are still in use."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import yaml
from deploy_plays import play, script
from deploy_plugins import ROOT

pytestmark = pytest.mark.slow

HOST = {"hosts": "a", "gather_facts": False}
ONE, TWO = "a" * 64, "b" * 64  # digests of two builds of one version


def bundle(directory: Path, digest: str) -> None:
    """A bundle of version 1.0 whose wheels have this digest."""
    (directory / "dist").mkdir(exist_ok=True)
    text = json.dumps({"version": "1.0", "digest": digest}).encode()
    with tarfile.open(directory / "dist/kdist-1.0.tar", "w") as tar:
        member = tarfile.TarInfo("RELEASE.json")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))


def installed(directory: Path, digest: str) -> None:
    release = directory / "root/releases" / f"1.0-{digest[:12]}"
    release.mkdir(parents=True)
    (release / "RELEASE.json").write_text(json.dumps({"version": "1.0", "digest": digest}))


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
    )
    found = directory / "found"
    return done.returncode, found.read_text() if found.exists() else done.stdout


def test_a_version_that_was_built_again_is_another_release(tmp_path: Path) -> None:
    installed(tmp_path, ONE)
    bundle(tmp_path, TWO)
    assert wanted(tmp_path) == (0, f"1.0-{TWO[:12]} False {TWO}")


def test_an_installed_release_needs_no_bundle(tmp_path: Path) -> None:
    installed(tmp_path, ONE)
    assert wanted(tmp_path) == (0, f"1.0-{ONE[:12]} True {ONE}")


def test_a_bundle_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    """Else the run would go on with the build before, and end in green."""
    installed(tmp_path, ONE)
    bundle(tmp_path, TWO)
    whole = (tmp_path / "dist/kdist-1.0.tar").read_bytes()
    (tmp_path / "dist/kdist-1.0.tar").write_bytes(whole[:520])
    status, said = wanted(tmp_path)
    assert status != 0
    assert "Unexpected EOF in archive" in said


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
