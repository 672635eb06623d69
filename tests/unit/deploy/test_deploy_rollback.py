"""What a rollback leaves behind on a host, and the settings that it goes back to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plugins import ROOT

BEFORE, UPGRADED, BACK = ("1.1", "1.0"), ("1.2", "1.1"), ("1.1", "1.1")


@pytest.mark.parametrize(
    ("host", "wanted", "is_kept"),
    [
        (BEFORE, "1.2", True),
        (UPGRADED, "1.1", False),
        (("", ""), "1.1", False),
        (BACK, "1.2", True),
    ],
    ids=["upgrade", "back", "first", "upgrade again"],
)
def test_the_release_that_a_rollback_leaves_is_not_the_previous_one(
    host: tuple[str, str], wanted: str, is_kept: bool
) -> None:
    tasks = yaml.safe_load((ROOT / "roles/kdist_release/tasks/switch.yml").read_text())
    (switch,) = [task for task in tasks if "Keep the replaced release" in str(task.get("block"))]
    links = [
        {"stat": {"lnk_source": f"/opt/kdist/releases/{name}"} if name else {}} for name in host
    ]
    variables = {
        "kdist_release_name": wanted,
        "kdist_release_links": {"results": links},
        **{name: trust_as_template(text) for name, text in switch["vars"].items()},
    }
    condition = switch["block"][0]["when"]
    templar = Templar(loader=DataLoader(), variables=variables)
    assert templar.template(trust_as_template(f"{{{{ {condition} }}}}")) is is_kept


NEW, OLD, OTHER = (
    "/opt/kdist/releases/1.2-b",
    "/opt/kdist/releases/1.1-a",
    "/opt/kdist/releases/1.0-c",
)


@pytest.mark.parametrize(
    ("current", "former", "kept"),
    [(NEW, OLD, "former"), (OLD, NEW, "current"), (NEW, OTHER, None), (OLD, None, "current")],
    ids=["upgraded", "back already", "never ran it", "never upgraded"],
)
def test_a_rollback_goes_back_to_the_settings_that_went_with_the_release(
    tmp_path: Path, current: str, former: str | None, kept: str | None
) -> None:
    for name, release in (("current", current), ("former", former)):
        if release is not None:
            (tmp_path / "d01" / name).mkdir(parents=True)
            (tmp_path / "d01" / name / "release").symlink_to(release)
            (tmp_path / "d01" / name / "broker.properties").write_text(f"{name}\n")
    task, _ = yaml.safe_load((ROOT / "roles/kdist_broker/tasks/keep.yml").read_text())
    variables = {"item": {"instance": "d01"}, "kdist_release_path": OLD}
    templar = Templar(loader=DataLoader(), variables=variables)
    script = str(templar.template(trust_as_template(task["ansible.builtin.shell"]["cmd"])))
    script = script.replace("/etc/kdist/brokers", str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == ((0, f"{kept}\n") if kept else (3, ""))


def test_the_settings_that_are_gone_back_to_are_the_same_to_the_byte() -> None:
    """Else the next run of site.yml would write them again."""
    _, keep = yaml.safe_load((ROOT / "roles/kdist_broker/tasks/keep.yml").read_text())
    results = [{"rc": 0, "item": {"instance": "d01"}, "stdout": "a=1\nb=2"}]
    variables = {
        "kdist_broker_formers": {"results": [*results, {"rc": 3, "item": {"instance": "d02"}}]},
        **{name: trust_as_template(text) for name, text in keep["vars"].items()},
    }
    templar = Templar(loader=DataLoader(), variables=variables)
    kept = keep["ansible.builtin.set_fact"]["kdist_broker_kept"]
    assert templar.template(trust_as_template(kept)) == {"d01": "a=1\nb=2\n"}
