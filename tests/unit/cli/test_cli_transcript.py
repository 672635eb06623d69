"""What the commands print, as a table and as JSON: people read the one, scripts the other.

`transcript.txt` has each command line with its output; names stand for what no two runs repeat.
After a change that is meant: `KDIST_WRITE_TRANSCRIPT=1 pytest` of this file writes it anew.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.unit.cli.cli_cluster import CliCluster, cli_cluster

TRANSCRIPT = Path(__file__).with_name("transcript.txt")
SET_UP = (
    ("topics", "create", "clicks", "--partitions", "2", "--config", "retention.ms=86400000"),
    ("topics", "create", "empty", "other"),
    ("topics", "alter", "empty", "--partitions", "3"),
    ("topics", "alter", "empty", "--config", "segment.bytes=2000000"),
    ("topics", "delete", "other", "--yes"),
    ("topics", "delete", "other", "--if-exists"),
    ("consume", "clicks", "--group", "readers", "--from-beginning", "--max", "2"),
    ("configs", "alter", "broker", "all", "--set", "log.retention.ms=86400000"),
)
SHOWN = (
    ("topics", "list"),
    ("topics", "describe"),
    ("topics", "delete-records", "clicks:0", "--before-offset", "1", "--dry-run"),
    ("groups", "list"),
    ("groups", "describe", "readers"),
    ("groups", "reset", "readers", "--to-earliest", "--dry-run"),
    ("configs", "list"),
    ("configs", "describe", "topic", "clicks", "segment.*", "retention.ms"),
    ("configs", "describe", "broker", "1", "broker.*", "log.retention.ms"),
    ("config", "describe", "segment.bytes", "broker.id"),
    ("cluster", "describe"),
    ("cluster", "disks"),
    ("cluster", "disks", "--replicas"),
    ("log", "dump", "<log>/clicks-0", "--records"),
    ("log", "dump", "<copy>/clicks-0", "--time-index"),
    ("log", "find", "<log>/clicks-0", "--offset", "1"),
    ("log", "verify", "<copy>/clicks-0"),
    ("log", "rebuild-indexes", "<copy>/clicks-0"),
    ("log", "trim", "<copy>/clicks-0", "--to-offset", "2", "--yes"),
    ("log", "trim", "<copy>/clicks-0", "--at-damage", "--yes"),
    ("groups", "delete-offsets", "readers", "--topic", "clicks:0", "--yes"),
    ("groups", "delete", "readers", "--yes"),
)
NAMED = (
    (r'"versions":\{[^}]*\}', '"versions":{...}'),
    (r"(?<=[ \"])[\w-]{22}(?=[\": \n])", "<id>"),
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    (r'"port":\d+', '"port":<port>'),
    (r"\b20\d\d-\d\d-\d\dT[\d:.]+Z", "<time>"),
    (r"\b1[789]\d{11}\b", "<ms>"),
    (r'"(crc|total_bytes|usable_bytes|logs_bytes)":\d+', r'"\1":<n>'),
    (r"\b[\d.]+ (KiB|MiB|GiB|TiB)", "<size>"),
    (r"(?<=controller)( +\d+){5}", " <numbers>"),
    (r" {2,}", "  "),
)


def commands(cluster: CliCluster, places: dict[str, str]) -> Iterator[str]:
    """Each command line and what it prints."""
    for words in SET_UP:
        yield from printed(cluster, words, places)
        if words[1] == "create" and words[2] == "clicks":
            cluster.done("produce", "clicks", "--partition", 0, text="a\nb\nc\n")
    copy = Path(places["<copy>"]) / "clicks-0"
    copy.mkdir(parents=True)
    shutil.copy(f"{places['<log>']}/clicks-0/{0:020}.log", copy)
    (copy / f"{0:020}.index").write_bytes(b"odd")
    (copy / f"{0:020}.timeindex").write_bytes(bytes([0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 2]))
    for words in SHOWN:
        yield from printed(cluster, words, places)
        yield from printed(cluster, (*words, "--json"), places)


def printed(cluster: CliCluster, words: tuple[str, ...], places: dict[str, str]) -> Iterator[str]:
    real = [word.replace("<log>", places["<log>"]) for word in words]
    result = cluster.run(*[word.replace("<copy>", places["<copy>"]) for word in real])
    shown = result.output
    for name, path in places.items():
        shown = shown.replace(path, name)
    for pattern, name in NAMED:
        shown = re.sub(pattern, name, shown)
    status = f"    exits with {result.exit_code}\n" if result.exit_code else ""
    yield f"$ kdist {' '.join(words)}\n{status}{shown}\n"


def test_every_table_and_every_json_line_is_as_before(tmp_path: Path) -> None:
    places = {"<log>": str(tmp_path / "d01"), "<copy>": str(tmp_path / "copy")}
    with cli_cluster(tmp_path, brokers=1) as cluster:
        found = "".join(commands(cluster, places))
    if os.environ.get("KDIST_WRITE_TRANSCRIPT"):
        TRANSCRIPT.write_text(found)
    assert found == TRANSCRIPT.read_text()
