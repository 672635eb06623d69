"""`kdist produce` and `kdist consume` against a real cluster, with kcat as judge and as member."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from standalone_process import KDIST, ROOT, TIMEOUT_S, Standalone

VALUES = ["text", None, {"hex": "ff00fe0a0d"}, " ", "ünïcödé\ttab"]
FORMAT = r"%t [%p] %o key %k (%K): %s (%S) at %T, %h, 100%%\x21\n"


def done(cluster: Standalone, *words: object, given: bytes = b"", **variables: str) -> bytes:
    """What a command printed, as bytes."""
    environment = {**os.environ, "KDIST_BROKER": cluster.addresses["d01"], **variables}
    found = subprocess.run(
        [*KDIST, *map(str, words)],
        cwd=ROOT,
        env=environment,
        input=given,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    return found.stdout


def kcat(cluster: Standalone, *words: object, given: bytes = b"") -> bytes:
    command = ["kcat", "-b", cluster.addresses["d01"], *map(str, words)]
    found = subprocess.run(command, input=given, capture_output=True, timeout=TIMEOUT_S)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def written(cluster: Standalone) -> str:
    """A topic with whatever a record can have, of two partitions."""
    done(cluster, "topics", "create", "written", "--partitions", 2)
    rows = [
        {
            "key": value,
            "value": VALUES[number - 1],
            "headers": [["h", str(number)], ["bytes", {"hex": "ff"}], ["none", None]],
            "timestamp": 1_767_225_600_000 + number,
            "partition": number % 2,
        }
        for number, value in enumerate(VALUES)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    done(cluster, "produce", "written", "--from-json", given=text.encode())
    return "written"


@pytest.mark.parametrize("partition", [0, 1])
def test_kcat_shows_the_same_by_the_same_format(
    cluster: Standalone, written: str, partition: int
) -> None:
    """But for an empty key or value, which is a null to kcat, so there is none here."""
    ours = done(
        *(cluster, "consume", written, "--partition", partition, "--from-beginning", "--until-end"),
        *("--null", "NULL", "-f", FORMAT),
    )
    theirs = kcat(cluster, "-C", "-t", written, "-p", partition, "-e", "-q", "-Z", "-f", FORMAT)
    assert ours == theirs
    assert ours.count(b"100%!\n") == 3 - partition


def test_what_kcat_writes_with_headers_and_nulls_is_shown(cluster: Standalone) -> None:
    done(cluster, "topics", "create", "from-kcat")
    words = ("-P", "-t", "from-kcat", "-K", "=", "-Z", "-H", "a=1", "-H", "a=2")
    kcat(cluster, *words, given=b"k=v\nnull=\n")
    found = done(cluster, "consume", "from-kcat", "--from-beginning", "--until-end", "--json")
    rows = [json.loads(line) for line in found.splitlines()]
    headers = [["a", "1"], ["a", "2"]]
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [
        ("k", "v", headers),
        ("null", None, headers),
    ]


def test_a_copy_through_json_is_the_same_to_the_byte(cluster: Standalone, written: str) -> None:
    done(cluster, "topics", "create", "copied", "--partitions", 2)
    original = done(cluster, "consume", written, "--from-beginning", "--until-end", "--json")
    done(cluster, "produce", "copied", "--from-json", given=original)
    words = ("--from-beginning", "--until-end", "--json")
    copy = done(cluster, "consume", "copied", *words).replace(b'"copied"', b'"written"')
    assert sorted(copy.splitlines()) == sorted(original.splitlines())


def test_a_profile_is_all_that_a_command_needs(cluster: Standalone, tmp_path: Path) -> None:
    (tmp_path / "kdist").mkdir()
    profile = tmp_path / "kdist/cluster.properties"
    profile.write_text(f"zk.connect={cluster.addresses['zookeeper']}\ncompression.type=lz4\n")
    variables = {"XDG_CONFIG_HOME": str(tmp_path), "KDIST_BROKER": ""}
    words = ("--profile", "cluster")
    done(cluster, *words, "topics", "create", "profiled", **variables)
    done(cluster, *words, "produce", "profiled", given=b"found\n", **variables)
    rest = ("profiled", "--from-beginning", "--until-end")
    assert done(cluster, *words, "consume", *rest, **variables) == b"found\n"


def test_kcat_and_the_command_share_a_groups_partitions(cluster: Standalone) -> None:
    done(cluster, "topics", "create", "divided", "--partitions", 2)
    common = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    address = cluster.addresses["d01"]
    ours = subprocess.Popen(
        [*KDIST, "consume", "divided", "--group", "both", "--broker", address],
        cwd=ROOT,
        **common,  # type: ignore[call-overload]
    )
    theirs = subprocess.Popen(
        ["kcat", "-b", address, "-q", "-u", "-G", "both", "divided"],
        **common,  # type: ignore[call-overload]
    )
    try:
        shares: list[int] = []
        while shares != [1, 1]:
            listed = cluster.run("groups", "list", "--json").splitlines()
            if any(json.loads(line)["group"] == "both" for line in listed):
                described = json.loads(done(cluster, "groups", "describe", "both", "--json"))
                shares = [len(member["partitions"]) for member in described["members"]]
        for partition in range(2):
            done(cluster, "produce", "divided", "--partition", partition, given=b"%d\n" % partition)
        assert {ours.stdout.readline(), theirs.stdout.readline()} == {b"0\n", b"1\n"}
        ours.send_signal(signal.SIGINT)
        assert ours.wait(TIMEOUT_S) == 130
    finally:
        for process in (ours, theirs):
            process.kill()
            process.communicate()
