"""Runs plays of Ansible for tests: on hosts that are all this machine, without root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from deploy_plugins import ROOT


def play(
    directory: Path, *plays: dict[str, Any], inventory: str | Path = "a,b,", **given: Any
) -> subprocess.CompletedProcess[str]:
    """A playbook with the settings of the tree; commands are looked for in the directory first."""
    page = directory / "play.yml"
    page.write_text(yaml.safe_dump(list(plays)))
    program = Path(sys.executable).with_name("ansible-playbook")
    words = [str(program), "--inventory", str(inventory), "--connection", "local", str(page)]
    words += ["--extra-vars", json.dumps(given | {"ansible_python_interpreter": sys.executable})]
    environment = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def script(path: Path, text: str) -> None:
    """A command of the shell, in the place of a real one."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
