#!/usr/bin/python
"""Switches what a stopped broker runs: its release and its settings, as one thing.

    /etc/kdist/brokers/d01/
        3f9ac2d41b70/           a generation, named by its contents
            release             a link to /opt/kdist/releases/...
            broker.properties
        current -> 3f9ac2d41b70
        former -> ...           what ran before

The unit runs `current`. It is switched by one rename, so that a broker never starts with a new
release under old settings, wherever a run is interrupted or the power goes. `former` stays the
generation to go back to until another one has been current.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: kdist_broker_switch
short_description: Switches a stopped broker's release and settings
description: Makes a generation of a release and a settings file current, or the former one.
options:
  directory: {type: path, required: true, description: The broker's directory of generations.}
  release: {type: path, description: "The release to run; without it, go back to the former."}
  settings: {type: path, description: "The settings file to run with, which is copied."}
  group: {type: str, required: true, description: Who may read the settings.}
author: The kdist authors
"""

EXAMPLES = """
- name: Switch to what is wanted
  kdist_broker_switch:
    directory: /etc/kdist/brokers/d01
    release: /opt/kdist/releases/0.2.0-1a2b3c4d5e6f
    settings: /etc/kdist/wanted/broker-d01.properties
    group: kdist
- name: Go back
  kdist_broker_switch: {directory: /etc/kdist/brokers/d01, group: kdist}
"""

RETURN = """
current: {type: str, returned: always, description: The current generation's name.}
former: {type: str, returned: always, description: "The former one's, or nothing."}
release: {type: str, returned: always, description: The current generation's release.}
"""

SETTINGS = "broker.properties"
NAME_LENGTH = 12


def name_of(release: str, settings: bytes) -> str:
    """A generation's name, by what is in it (pure)."""
    return hashlib.sha256(release.encode() + b"\0" + settings).hexdigest()[:NAME_LENGTH]


def target(link: Path) -> str:
    """The name that a link leads to; nothing if there is no link."""
    return os.readlink(link) if link.is_symlink() else ""


def put_link(link: Path, to: str) -> None:
    """Make the link lead there, whether or not it exists, in one step."""
    beside = link.with_name(f".{link.name}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(to)
    beside.replace(link)


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make(directory: Path, release: str, settings: bytes, group: str) -> str:
    """Make the generation, unless it is there, and return its name."""
    name = name_of(release, settings)
    if not (directory / name).is_dir():
        begun = directory / f".{name}"
        if begun.exists():  # a run that died has left it
            shutil.rmtree(begun)
        begun.mkdir(mode=0o755)
        (begun / "release").symlink_to(release)
        file = begun / SETTINGS
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb") as opened:
            os.fchmod(opened.fileno(), 0o640)
            opened.write(settings)
            opened.flush()
            os.fsync(opened.fileno())
        shutil.chown(file, group=group)
        sync(begun)
        begun.replace(directory / name)
        sync(directory)
    return name


def switch(directory: Path, name: str) -> bool:
    """Make a generation current and what was current the former one; False if it was already."""
    was = target(directory / "current")
    if was == name:
        return False
    if was:
        put_link(directory / "former", was)
    put_link(directory / "current", name)
    sync(directory)
    return True


def remove_others(directory: Path) -> None:
    """Remove generations that no link leads to."""
    kept = {target(directory / link) for link in ("current", "former")}
    for each in directory.iterdir():
        if each.is_dir() and not each.is_symlink() and each.name not in kept:
            shutil.rmtree(each)


def main() -> None:
    arguments = {
        "directory": {"type": "path", "required": True},
        "release": {"type": "path"},
        "settings": {"type": "path"},
        "group": {"type": "str", "required": True},
    }
    together = [("release", "settings")]
    module = AnsibleModule(argument_spec=arguments, required_together=together)
    directory = Path(module.params["directory"])
    if module.params["release"]:
        settings = Path(module.params["settings"]).read_bytes()
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        name = make(directory, module.params["release"], settings, module.params["group"])
    else:
        name = target(directory / "former")
        if not name:
            module.fail_json(msg=f"{directory} has no former generation to go back to")
    changed = switch(directory, name)
    remove_others(directory)
    module.exit_json(
        changed=changed,
        current=name,
        former=target(directory / "former"),
        release=os.readlink(directory / name / "release"),
    )


if __name__ == "__main__":
    main()
