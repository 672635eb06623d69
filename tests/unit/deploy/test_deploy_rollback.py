"""A rollback goes back, never forward again, whatever state an interrupted run has left."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.template import Templar, trust_as_template  # type: ignore[import-untyped]
from deploy_plugins import ROOT

# A host by its current release and the previous one.
BEFORE, UPGRADED, BACK = ("1.1", "1.0"), ("1.2", "1.1"), ("1.1", "1.1")


def found(kdist_version: str, *hosts: tuple[str, str], **given: Any) -> list[str]:
    """The releases that the playbook finds to go back to; with more or less than one it ends."""
    plays = yaml.safe_load((ROOT / "playbooks/rollback.yml").read_text())
    (derived,) = [play["vars"] for play in plays if "vars" in play]
    names = [f"b{number}" for number in range(len(hosts))]
    variables: dict[str, Any] = {
        "kdist_version": kdist_version,
        "groups": {"broker": names},
        "ansible_play_hosts_all": names,
        "hostvars": {
            name: {"kdist_rollback_current": current, "kdist_rollback_previous": previous}
            for name, (current, previous) in zip(names, hosts, strict=True)
        },
        **{name: trust_as_template(text) for name, text in derived.items()},
        **given,
    }
    templar = Templar(loader=DataLoader(), variables=variables)
    return list(templar.template(trust_as_template("{{ kdist_rollback_found }}")))


@pytest.mark.parametrize("inventory", ["1.2", "1.1"], ids=["in the inventory", "by -e"])
@pytest.mark.parametrize(
    "hosts",
    [
        (UPGRADED, UPGRADED),
        (UPGRADED, BEFORE),
        (UPGRADED, BACK),
        (BACK, BACK),
        (UPGRADED, ("1.1", "")),
    ],
    ids=["upgraded", "upgrade died", "rollback died", "died after the roll", "first upgrade died"],
)
def test_a_rollback_finds_the_same_release_wherever_it_begins(
    hosts: tuple[tuple[str, str], ...], inventory: str
) -> None:
    """Whether the inventory has the release that is left, or the one before."""
    assert found(inventory, *hosts) == ["1.1"]


def test_a_rollback_goes_to_the_named_release() -> None:
    assert found("1.2", UPGRADED, kdist_rollback_to="0.9") == ["0.9"]


def test_hosts_that_never_were_upgraded_have_nothing_to_go_back_to() -> None:
    assert found("1.2", ("1.2", ""), ("1.2", "")) == []


@pytest.mark.parametrize(
    ("role", "page"), [("kdist_broker", "activate.yml"), ("kdist_release", "install.yml")]
)
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
    role: str, page: str, host: tuple[str, str], wanted: str, is_kept: bool
) -> None:
    tasks = yaml.safe_load((ROOT / "roles" / role / "tasks" / page).read_text())
    (switch,) = [task for task in tasks if "Keep the replaced release" in str(task.get("block"))]
    links = [
        {"stat": {"lnk_source": f"/opt/kdist/releases/{name}"} if name else {}} for name in host
    ]
    variables = {
        "kdist_version": wanted,
        f"{role}_links": {"results": links},
        **{name: trust_as_template(text) for name, text in switch["vars"].items()},
    }
    condition = switch["block"][0]["when"]
    templar = Templar(loader=DataLoader(), variables=variables)
    assert templar.template(trust_as_template(f"{{{{ {condition} }}}}")) is is_kept
