"""The disk marker: a broker starts on its own disk or not at all."""

from __future__ import annotations

import json
from typing import cast

import pytest

from kdist.broker.disk_marker import WrongDisk, check_marker
from kdist.config.disk import DiskSettings
from kdist.config.load import broker_from
from kdist.runtime.disk import Disk
from kdist.runtime.files import Files

MARKER = {"cluster": "lab-dc1", "broker": 201, "disk": "d01"}


def check(tmp_path: object, marker: object, **given: str) -> None:
    path = f"{tmp_path}/disk.json"
    content = marker if isinstance(marker, str) else json.dumps(marker)
    if marker is not None:
        with open(path, "w") as file:
            file.write(content)
    settings = {
        "broker.id": "201",
        "log.dir": f"{tmp_path}/kdist",
        "zookeeper.connect": "zk:2181",
        "disk.marker": path,
        "disk.cluster": "lab-dc1",
        "disk.id": "d01",
    }
    config = broker_from(settings | {name.replace("_", "."): v for name, v in given.items()})
    check_marker(config.disk, config.broker.id, Disk())


def test_its_own_disk_is_accepted(tmp_path: object) -> None:
    check(tmp_path, MARKER)
    check(tmp_path, MARKER | {"made": "2026-11-20"})


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        (None, "disk.json is not there: is the disk mounted?"),
        ("{", "is not JSON"),
        ([1], "is not a JSON object"),
        ({}, "names cluster None, but this is cluster 'lab-dc1'"),
        (MARKER | {"cluster": "production-dc1"}, "names cluster 'production-dc1'"),
        (MARKER | {"broker": 202}, "names broker 202, but this is broker 201"),
        (MARKER | {"broker": "201"}, "names broker '201'"),
        (MARKER | {"disk": "d02"}, "names disk 'd02', but this is disk 'd01'"),
    ],
)
def test_another_disk_is_refused(tmp_path: object, marker: object, sentence: str) -> None:
    with pytest.raises(WrongDisk) as refused:
        check(tmp_path, marker)
    assert sentence in str(refused.value)
    assert refused.value.EXIT_STATUS == 78


def test_without_a_marker_in_the_settings_nothing_is_checked(tmp_path: object) -> None:
    config = broker_from(
        {"broker.id": "1", "log.dir": f"{tmp_path}/kdist", "zookeeper.connect": "zk:2181"}
    )
    check_marker(config.disk, 1, Disk())


class _Guarded:
    """The directory below a mount that is not there: nobody may look into it."""

    def read(self, path: str) -> bytes:
        raise PermissionError(path)


def test_a_marker_that_cannot_be_read_counts_as_missing() -> None:
    settings = DiskSettings(marker="/data/d01/disk.json")
    with pytest.raises(WrongDisk, match="is the disk mounted"):
        check_marker(settings, 201, cast(Files, _Guarded()))
