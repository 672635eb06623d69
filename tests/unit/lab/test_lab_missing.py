"""The lab's errors where it cannot run, and for a second command on the same directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kdist.errors import UserError
from lab import cli_faults, missing
from lab.cli import lab
from lab.lock import held
from lab.place import Place

PLACE = Place(Path("/nowhere/kdist-lab"), Path("/nowhere/base"))


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)


def test_a_user_who_is_not_root_is_told_so_first() -> None:
    sentences = missing.missing(PLACE, find=lambda name: f"/bin/{name}")
    assert sentences == ["root is needed: containers, mounts and loop devices are made."]


@pytest.mark.parametrize(("program", "package"), missing.PROGRAMS.items())
def test_a_missing_program_is_named_with_its_package(program: str, package: str) -> None:
    sentences = missing.missing(PLACE, find=lambda name: None if name == program else name)
    assert f"{program} is not here: apt-get install {package}." in sentences


def test_mmdebstrap_is_needed_only_until_the_image_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_it(name: str) -> str | None:
        return None if name == "mmdebstrap" else name

    place = Place(PLACE.home, tmp_path)
    assert any("mmdebstrap" in sentence for sentence in missing.missing(place, find=without_it))
    monkeypatch.setattr("lab.image.key", lambda is_bare: "bare" if is_bare else "abc")
    (tmp_path / "abc").mkdir()
    assert not any("mmdebstrap" in sentence for sentence in missing.missing(place, find=without_it))
    assert any("mmdebstrap" in sentence for sentence in missing.missing(place, True, without_it))


def test_a_path_too_long_for_sockets_is_refused() -> None:
    place = Place(Path("/nowhere") / ("a" * 50), Path("/nowhere/base"))
    assert any("too long" in sentence for sentence in missing.missing(place, find=str))


def test_a_directory_whose_name_no_cgroup_can_have_is_refused() -> None:
    for home in (Path("/nowhere/My Lab"), Path("/nowhere/lab_2"), Path("/")):
        sentences = missing.missing(Place(home, PLACE.images), find=str)
        assert any(f"ends with {home.name}:" in sentence for sentence in sentences)
    sentences = missing.missing(Place(Path("/nowhere/lab-2"), PLACE.images), find=str)
    assert not any("ends with" in sentence for sentence in sentences)


@pytest.mark.parametrize("path", ["/my labs/lab", "/labs,old/lab", "/labs:old/lab", "/%h/lab"])
def test_a_directory_that_mount_or_ssh_would_read_otherwise_is_refused(path: str) -> None:
    sentences = missing.missing(Place(Path(path), Path(path)), find=str)
    for variable in ("KDIST_LAB_DIR", "KDIST_LAB_IMAGES"):
        assert any(sentence.startswith(f"{variable} is {path}: ") for sentence in sentences)


def test_a_second_command_in_a_directory_is_told_which_one_runs(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    who = rf"{tmp_path} is in use by process \d+ \(up k1\)"
    with held(lock, "up k1"), pytest.raises(UserError, match=who), held(lock, "down"):
        pass
    with held(lock, "down"):
        assert "down" in lock.read_text()


def test_each_command_has_a_sentence() -> None:
    commands = [*lab.commands.values(), *cli_faults.disk.commands.values()]
    assert len(commands) >= 25
    assert all((command.help or "").strip() for command in commands)


def test_faults_want_root() -> None:
    result = CliRunner().invoke(lab, ["cut", "k1", "k2"])
    assert isinstance(result.exception, UserError)
    assert "root" in str(result.exception)


@pytest.mark.parametrize(
    ("command", "option"),
    [("net-slow k2", "--mbit"), ("disk slow k2 d01", "--iops"), ("disk slow k2 d01", "--mib")],
)
def test_a_limit_below_zero_is_refused(
    command: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    result = CliRunner().invoke(lab, [*command.split(), option, "-1"])
    assert (result.exit_code, "is not in the range x>=0" in result.output) == (2, True)


def test_down_leaves_a_directory_alone_that_no_lab_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("lab.life.down", lambda _: pytest.fail("it looks for cgroups of its name"))
    (tmp_path / "theirs").touch()
    environment = {"KDIST_LAB_DIR": str(tmp_path), "KDIST_LAB_IMAGES": str(tmp_path)}
    result = CliRunner().invoke(lab, ["down", "--all"], env=environment)
    assert (result.exit_code, result.output) == (0, "")
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["theirs"]


def test_a_host_cannot_be_started_in_a_lab_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    home = tmp_path / "no-such-lab"
    result = CliRunner().invoke(lab, ["on", "k1"], env={"KDIST_LAB_DIR": str(home)})
    assert "the lab is down" in str(result.exception)
    assert not home.exists()
