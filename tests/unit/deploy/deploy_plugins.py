"""Loads Ansible's plugin files for tests, as Ansible does: by their path, not by an import."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
# What playbooks/group_vars/all.yml says of every host.
PLACES = {
    "kdist_root": "/opt/kdist",
    "kdist_user": "kdist",
    "kdist_group": "kdist",
    "kdist_current": "/opt/kdist/current/bin/kdist",
}


def load(path: str) -> Any:
    """The module in a file of the tree."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
