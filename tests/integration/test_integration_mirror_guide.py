"""What docs/guides/mirror.md says is true: its file and its commands, on two real clusters."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.integration.mirror_processes import (
    MirrorProcess,
    await_ends,
    create,
    ended,
    kdist,
    producer,
    two_clusters,
)
from tests.integration.zookeeper_server import free_port

GUIDE = (Path(__file__).parents[2] / "docs/guides/mirror.md").read_text()
FILE, _ = re.findall(r"```properties\n(.*?)```", GUIDE, re.DOTALL)
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]


def test_the_guides_file_and_commands_do_what_it_says(tmp_path: Path) -> None:
    with two_clusters(tmp_path) as (source, target):
        for topic in ("flights", "ops.host", "opsXhost", "orders", "orders.test"):
            create(source.address, topic, 1)
        writer = producer(source.address)
        writer.produce("flights", b"one", partition=0)
        writer.produce("ops.host", b"two", partition=0)
        assert writer.flush(10) == 0
        mirror = MirrorProcess(tmp_path, "mirror", {})
        text = FILE.replace("127.0.0.1:9092", source.address)
        text = text.replace("127.0.0.1:9192", target.address).replace("9392", str(free_port()))
        mirror.file.write_text(text)
        run, *asked, release, seek = COMMANDS
        assert run == "kdist mirror --config mirror.properties"
        with ended(mirror):
            mirror.start()
            await_ends(target.address, "flights", [1])
            await_ends(target.address, "ops.host", [1])
            await_ends(target.address, "dc1.orders", [0])
            for command in asked:
                assert "flights" in said(command, mirror)
            assert mirror.stop() == 0
        assert said(release, mirror) == "flights is the target's own.\n"
        assert said(seek, mirror) == (
            "flights-0 goes on from offset 1: its copy was mirrored up to there, and takes nothing"
            " from before.\n"
        )
        listed = kdist("topics", "list", "--broker", target.address).stdout.split()
    assert "opsXhost" not in listed
    assert "dc1.orders.test" not in listed


def said(command: str, mirror: MirrorProcess) -> str:
    """What a command of the guide says, of the mirror's own file."""
    program, *words = shlex.split(command.replace("mirror.properties", str(mirror.file)))
    assert program == "kdist"
    done = kdist(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout
