"""Runs the deploy tests against the hosts of an inventory.

pytest tests/deploy --inventory inventory/vagrant              checks hosts without changing them
python -m lab run .venv/bin/pytest tests/deploy --inventory inventory/lab --drills

Without --inventory, only those tests run that make their own hosts. The drills inject faults, so
they run only in the lab, and only with --drills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.place import Place
from tests.deploy.deployed import Broker, Cluster, Member, Site
from tests.deploy.drilling import Lab, await_well

_SITE = pytest.StashKey[Site]()
# A test with one of these fixtures as an argument runs once for each of them.
_EACH = (
    *("host", "broker_host", "zookeeper", "monitor", "mirror_host", "spark_host"),
    *("broker", "cluster"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("deploy")
    group.addoption("--inventory", type=Path, help="Test the hosts of this inventory.")
    group.addoption("--drills", action="store_true", help="Break things too: in the lab only.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "drill: breaks something in the lab, and mends it")
    inventory = config.getoption("inventory", None)
    if inventory is None:
        return
    try:
        config.stash[_SITE] = site = Site(inventory)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if site.environment == "lab" and not _is_in_the_labs_network():
        raise pytest.UsageError(
            "The lab's hosts are in a network of their own: start this by `python -m lab run`."
        )
    if config.getoption("drills", False) and site.environment != "lab":
        raise pytest.UsageError(f"The drills break things, and {inventory} is not the lab's.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that have no hosts here, and the drills unless --drills is given."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    on_hosts = {"site", *_EACH}
    out = {item for item in ours if on_hosts.intersection(getattr(item, "fixturenames", ()))}
    if _SITE in config.stash:
        out = {item for item in ours if item not in out}
        if not config.getoption("drills", False):
            out |= {item for item in ours if item.get_closest_marker("drill")}
    if out:
        config.hook.pytest_deselected(items=sorted(out, key=items.index))
        items[:] = [item for item in items if item not in out]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    site = metafunc.config.stash.get(_SITE, None)
    for name in _EACH:
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, _members(site, name) if site else [], ids=str)


def _members(site: Site, name: str) -> list[Member] | list[Broker] | list[Cluster]:
    if name == "host":
        return list(site.hosts)
    if name == "broker":
        return site.brokers
    if name == "cluster":
        return site.clusters
    return site.group(name.removesuffix("_host"))


@pytest.fixture(scope="session")
def site(pytestconfig: pytest.Config) -> Site:
    """All hosts of the inventory."""
    return pytestconfig.stash[_SITE]


@pytest.fixture
def lab(site: Site) -> Lab:
    """The lab's faults and the playbooks, once all hosts are healthy."""
    await_well(site.brokers, timeout_s=20)
    return Lab(site.inventory)


def _is_in_the_labs_network() -> bool:
    ours, labs = Path("/proc/self/ns/net"), Place.of_environment().netns
    return labs.exists() and ours.stat().st_ino == labs.stat().st_ino
