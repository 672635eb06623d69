"""`--json` of every command: an object for each line, which is what scripts are promised."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kdist.cli.main import kdist
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster
from tests.unit.inspection.inspection_logs import make_directory

COMMANDS = """
    config check FILES/broker.properties
    config describe segment.bytes
    topics create clicks views --partitions 2 --if-not-exists
    topics alter clicks --partitions 3 --config retention.ms=86400000
    topics apply FILES/topics.json
    topics list --internal
    topics describe --replicas
    produce clicks
    consume clicks --from-beginning --until-end --group readers
    groups list
    groups describe
    groups reset readers --to-earliest --yes
    groups delete-offsets readers --topic clicks:0 --yes
    groups delete readers --yes
    topics delete-records clicks --all --yes
    configs alter topic clicks --unset retention.ms
    configs describe broker 1
    configs list
    acls add --principal User:etl --operation read --topic clicks --zookeeper memory:2181
    acls list --zookeeper memory:2181
    acls remove --topic clicks --yes --zookeeper memory:2181
    users create ana --password-file - --zookeeper memory:2181
    users passwd ana --password-file - --zookeeper memory:2181
    users list --zookeeper memory:2181
    users disconnect ana --yes --zookeeper memory:2181
    users delete ana --yes --zookeeper memory:2181
    cluster describe
    cluster disks --replicas
    cluster elect clicks
    cluster health
    reassign plan views --replication-factor 2 --sample 0 --output FILES/plan.json
    reassign execute FILES/plan.json
    reassign verify FILES/plan.json
    reassign cancel FILES/plan.json
    reassign refill 2
    bench produce clicks --records 10
    bench consume clicks
    bench latency clicks --records 1
    gate lock --owner ann --run r1 --zookeeper memory:2181
    gate holder --zookeeper memory:2181
    gate unlock --run r1 --zookeeper memory:2181
    log dump FILES/log
    log verify FILES/log
    log find FILES/log/clicks-0 --offset 1
    log clean FILES/log/clicks-0 --dry-run
    log trim FILES/log/clicks-0 --to-offset 2 --yes
    log rebuild-indexes FILES/log/clicks-0
    topics delete views --yes
"""
ELSEWHERE = {  # have tests of their own, as they need a source, Spark, or several hosts
    "standalone",
    *("mirror status", "load", "load history", "load replay", "load verify"),
    *("gate", "gate plan", "gate rollback"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with cli_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def with_json(
    command: click.Command, ctx: click.Context, words: tuple[str, ...] = ()
) -> Iterator[str]:
    """The names of the commands that have `--json`."""
    if any("--json" in option.opts for option in command.params):
        yield " ".join(words)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            inner = click.Context(below, info_name=name, parent=ctx)
            yield from with_json(below, inner, (*words, name))


def test_every_command_prints_an_object_for_each_line(running: CliCluster, tmp_path: Path) -> None:
    make_directory(tmp_path / "log")
    (tmp_path / "topics.json").write_text('[{"name": "added"}]')
    (tmp_path / "broker.properties").write_text("broker.id=1\nodd=1\n")
    untold = {*with_json(kdist, click.Context(kdist))} - ELSEWHERE
    for line in COMMANDS.split("\n"):
        words = shlex.split(line.replace("FILES", str(tmp_path)))
        if not words:
            continue
        result = running.run(*words, "--json", text='a\n"b"\n')
        rows = [json.loads(each) for each in result.stdout.splitlines()]
        assert rows, (line, result.stderr)
        assert all(isinstance(each, dict) for each in rows), line
        untold -= {words[0], " ".join(words[:2])}
    assert not untold
