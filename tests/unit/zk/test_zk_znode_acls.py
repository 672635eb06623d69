"""Each znode's own ACL: of every row of the table, and in the tree of brokers that set them."""

from __future__ import annotations

from functools import partialmethod

import pytest

from kdist.testing.memory_zookeeper import MemoryEnsemble
from kdist.zk import znodes
from kdist.zk.values import EntitySettings
from kdist.zk.znode_acls import (
    OPEN,
    READABLE,
    SENSITIVE,
    Permission,
    ZnodeAcl,
    acl_of,
    digest_id,
    world_permissions,
)
from tests.simulator.cluster import Cluster, create
from tests.unit.broker.broker_acls import AUTHORIZER

# Every row, so that whoever adds one says who may read it.
ACLS: dict[ZnodeAcl, tuple[str, ...]] = {
    READABLE: (
        "/brokers/ids",
        "/brokers/ids/{id}",
        "/brokers/seqid",
        "/brokers/topics",
        "/brokers/topics/{topic}",
        "/brokers/topics/{topic}/partitions",
        "/brokers/topics/{topic}/partitions/{partition}",
        "/brokers/topics/{topic}/partitions/{partition}/state",
        "/controller",
        "/controller_epoch",
        "/cluster/id",
        "/latest_producer_id_block",
        "/config/topics/{topic}",
        "/config/clients/{client}",
        "/config/ips/{address}",
        "/config/changes",
        "/config/changes/config_change_",
        "/kafka-acl/{type}",
        "/kafka-acl/{type}/{name}",
        "/kafka-acl-changes",
        "/kafka-acl-changes/acl_changes_",
        "/kafka-acl-extended/prefixed/{type}",
        "/kafka-acl-extended/prefixed/{type}/{name}",
        "/kafka-acl-extended-changes",
        "/kafka-acl-extended-changes/acl_changes_",
        "/admin/delete_topics",
        "/admin/delete_topics/{topic}",
        "/admin/reassign_partitions",
        "/admin/preferred_replica_election",
        "/isr_change_notification",
        "/log_dir_event_notification",
        "/kdist/disks",
        "/kdist/disks/{id}",
        "/kdist/disconnects",
        "/kdist/disconnects/disconnect_",
        "/kdist/locks",
        "/kdist/locks/{name}",
    ),
    SENSITIVE: (
        "/config/brokers/{id}",
        "/config/users/{user}",
        "/config/users/{user}/clients/{client}",
        "/kdist/secrets",
        "/kdist/secrets/{name}",
    ),
    OPEN: (
        "/consumers",
        "/consumers/{group}/ids",
        "/consumers/{group}/ids/{consumer}",
        "/consumers/{group}/owners/{topic}",
        "/consumers/{group}/owners/{topic}/{partition}",
        "/consumers/{group}/offsets/{topic}",
        "/consumers/{group}/offsets/{topic}/{partition}",
    ),
}
ACL_OF_ROW = {row: acl for acl, rows in ACLS.items() for row in rows}
BROKERS = "broker:of-brokers"


def test_every_znode_has_its_acl() -> None:
    assert {row.template: acl_of(row.template) for row in znodes.ROWS} == ACL_OF_ROW


@pytest.mark.parametrize("path", ["/kdist/secrets", "/kdist/secrets/scram", "/config/users"])
def test_what_holds_secrets_can_be_read_by_its_creator_only(path: str) -> None:
    assert acl_of(path) == SENSITIVE


@pytest.mark.parametrize("path", ["/config/usersof", "/consumers2", "/kdist", "/"])
def test_a_path_that_only_begins_like_an_exception_is_none(path: str) -> None:
    assert acl_of(path) == READABLE


def test_an_id_is_as_servers_know_it() -> None:
    """As ZooKeeper's own documentation has it, of its super user."""
    assert digest_id("super:admin") == "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="


def test_the_tree_of_secured_brokers_is_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with_acls = partialmethod(MemoryEnsemble.client, digest=BROKERS, sets_acls=True)
    monkeypatch.setattr(MemoryEnsemble, "client", with_acls)
    cluster = Cluster(settings=AUTHORIZER)
    found: dict[str, ZnodeAcl] = {}

    async def run() -> None:
        await cluster.started()
        assert (await create(await cluster.client(), "clicks")).error_code == 0
        zk = cluster.zks[1]
        user = EntitySettings({"producer_byte_rate": "1"})
        await zk.create(znodes.USER_SETTINGS.path("ann"), znodes.USER_SETTINGS.encode(user))
        waiting = ["/"]
        while waiting:
            path = waiting.pop()
            found[path] = await zk.acl(path)
            waiting += [f"{path.rstrip('/')}/{name}" for name in await zk.children(path)]

    cluster.run(run())
    own = ("digest", digest_id(BROKERS), Permission.ALL)
    rows = {path: row for path in found for row in znodes.ROWS if row.names(path) is not None}
    assert {rows[path].template for path in rows} > {
        *(
            "/brokers/ids/{id}",
            "/controller",
            "/brokers/topics/{topic}/partitions/{partition}/state",
        ),
        *("/consumers", "/config/users/{user}", "/kafka-acl/{type}"),
    }
    for path, row in rows.items():
        wanted = ACL_OF_ROW[row.template]
        assert world_permissions(found[path]) == world_permissions(wanted), path
        assert (own in found[path]) == (wanted is not OPEN), path
    for path in found.keys() - {"/"} - rows.keys():  # parents that have no row
        assert own in found[path], path
        assert world_permissions(found[path]) & ~Permission.READ == 0, path
