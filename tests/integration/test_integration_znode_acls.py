"""Znodes have the ACLs that Apache Kafka creates them with, but for those that are kdist's own."""

from __future__ import annotations

import subprocess

import pytest
from peer.kafka_peer import HERE, QUICK_JVM, ensure_jars

from kdist.zk import znodes
from kdist.zk.securing import ROOTS
from kdist.zk.znode_acls import acl_of

pytestmark = pytest.mark.peer

_SOURCE = HERE / "znodeacls" / "ZnodeAcls.java"


def test_acls_are_apache_kafkas() -> None:
    """Kafka opens /consumers only: what is below is created by its consumers, openly."""
    templates = [row.template for row in znodes.ROWS]
    asked = [*ROOTS, *templates, "/config/users", "/config/brokers", "/delegation_token/tokens/a"]
    paths = [
        path
        for path in asked
        if not path.startswith(("/consumers/", "/kdist/secrets"))  # which Kafka does not know
    ]
    done = subprocess.run(
        ["java", *QUICK_JVM, "-cp", f"{ensure_jars()}/*", str(_SOURCE)],
        input="".join(f"{path}\n" for path in paths),
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = {
        path: ",".join(f"{scheme}:{id_}:{int(may)}" for scheme, id_, may in acl_of(path))
        for path in paths
    }
    secured, *theirs = done.stdout.splitlines()
    assert dict(zip(paths, theirs, strict=True)) == ours
    assert {f"/{path.split('/')[1]}" for path in secured.split(",")} <= set(ROOTS)
