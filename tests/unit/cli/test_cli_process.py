"""`kdist` as a process: start time, exit status, pipes, signals, waiting, files it may not read."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kdist.cli.consume.reading import ended_when_unread
from kdist.cli.shared import connecting
from kdist.cli.shared.client_settings import Clients
from kdist.client.cluster import Address, Cluster
from kdist.records.build import build_batch
from tests.unit.cli.cli_cluster import CliCluster
from tests.unit.inspection.inspection_logs import START_MS, make_directory

ROOT = Path(__file__).parents[3]
KDIST = [sys.executable, "-m", "kdist.cli"]
NOBODY = 65534


def own_time_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(*arguments: str, **settings: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KDIST, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, **settings
    )


async def wait(seconds: float) -> None:
    with ended_when_unread():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("arguments", [["--help"], ["log", "--help"]])
def test_help_starts_fast(arguments: list[str]) -> None:
    before = own_time_of_children_s()
    assert run(*arguments).returncode == 0
    assert own_time_of_children_s() - before < 0.5  # 0.12 s as measured; other work does not count


@pytest.mark.parametrize("arguments", [["--help"], ["log", "--help"], ["log", "verify", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from kdist.cli.main import kdist\n"
        f"try: kdist({arguments!r})\n"
        "except SystemExit: print([m for m in ('rich', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_one_line() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("kdist")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_path_that_is_not_utf_8_is_shown_with_backslashes(tmp_path: Path, errors: str) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9-0")
    odd.mkdir()
    (odd / f"{0:020}.log").touch()
    environment = {**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"}
    for words in (["dump"], ["verify"], ["verify", "--json"]):
        done = subprocess.run(
            [*KDIST, "log", *words, odd], cwd=ROOT, capture_output=True, timeout=60, env=environment
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert rb"/caf\udce9-0" in done.stdout


def test_kazoos_retries_are_not_printed_without_logging() -> None:
    code = (
        "import logging, kdist.zk.kazoo_client\n"
        "logging.getLogger('kazoo.client').warning('Connection dropped')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_statuses_are_those_of_the_table(tmp_path: Path) -> None:
    partition = make_directory(tmp_path / "log")
    assert run("log", "verify", str(partition)).returncode == 0
    next(partition.glob("*.log")).write_bytes(b"damage" * 50)
    assert run("log", "verify", str(partition)).returncode == 1
    missing = run("log", "verify", str(tmp_path / "missing"))
    assert (missing.returncode, missing.stderr) == (
        1,
        f"kdist: {tmp_path / 'missing'} is not there\n",
    )
    assert run("log", "verify").returncode == 2


def test_a_trim_does_not_print_recoverys_log_lines(tmp_path: Path) -> None:
    partition = make_directory(tmp_path / "log")
    with next(partition.glob("*.log")).open("ab") as segment:
        segment.write(b"damage" * 50)
    done = run("log", "trim", str(partition), "--at-damage", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert " now ends at offset " in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_acts_like_dev_null(closed: str, tmp_path: Path) -> None:
    batch = build_batch([b"x"] * 3, timestamp_ms=START_MS)
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(batch)
    line = f'"$@" log dump {segment} {closed}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *KDIST], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (done.stdout == "") == (">&-" in closed)


def test_an_output_that_is_full_is_named() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*KDIST, "config", "describe"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == b"kdist: standard output: No space left on device\n"


def test_a_closed_standard_input_has_no_lines(cluster: CliCluster) -> None:
    cluster.done("topics", "create", "mute")
    line = f'"$@" produce mute --broker {cluster.address} <&-'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *KDIST], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout[:10]) == (0, "0 records ")


def test_an_unreadable_settings_file_is_a_one_sentence_error(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing", tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for command, path, sentence in (
        ("agent", missing, f"{missing} does not exist"),
        ("broker", binary, f"{binary} is not UTF-8 text"),
        ("load", tmp_path, f"{tmp_path}: Is a directory"),
        ("mirror", binary, f"{binary} is not UTF-8 text"),
    ):
        done = run(command, "--config", str(path))
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"kdist: {sentence}\n")


def test_a_closed_pipe_ends_the_dump_silently(tmp_path: Path) -> None:
    batch = build_batch([b"x" * 100] * 100, timestamp_ms=START_MS)
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(b"".join([batch] * 1))
    with segment.open("ab") as file:
        for number in range(1, 2000):
            batch[:8] = (number * 100).to_bytes(8, "big")
            file.write(batch)
    process = subprocess.Popen(
        [*KDIST, "log", "dump", "--records", str(segment)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


@pytest.mark.parametrize("words", [("topics", "list"), ("consume", "unread", "--from-beginning")])
@pytest.mark.parametrize("is_ending", [True, False])
def test_every_command_whose_output_nobody_reads_exits_alike(
    cluster: CliCluster, words: tuple[str, ...], is_ending: bool
) -> None:
    cluster.run("topics", "create", "unread")
    cluster.done("produce", "unread", text="x\n" * 100_000)
    more = ("--until-end",) if is_ending and words[0] == "consume" else ()
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as unread:
        done = subprocess.run(
            [*KDIST, *words, *more, "--broker", cluster.address],
            cwd=ROOT,
            stdout=unread,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", [("--help",), ("topics", "--help"), ("--version",), ("nothing",)])
def test_help_and_errors_that_nobody_reads_exit_alike(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as unread:
        done = subprocess.run([*KDIST, *words], cwd=ROOT, stdout=unread, stderr=unread, timeout=60)
    assert done.returncode == 141


def test_a_broker_may_be_named_before_the_command(cluster: CliCluster) -> None:
    found = run("--broker", cluster.address, "topics", "list", "--json")
    assert (found.returncode, found.stderr) == (0, "")
    shown = run("--bootstrap-server", cluster.address, "consume", "unread", "--max", "0")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert run("--broker", "127.0.0.1:1", "topics", "list").returncode == 1
    assert run("--broker", cluster.address, "log", "dump", ".").returncode == 2  # it has no broker


def test_an_interrupt_exits_with_130(tmp_path: Path) -> None:
    partition = make_directory(tmp_path / "log")
    process = subprocess.Popen(
        [*KDIST, "log", "trim", str(partition), "--to-offset", "3"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    while b"Type " not in os.read(process.stdout.fileno(), 4096):
        pass  # until it waits for an answer
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_an_interrupt_while_modules_are_imported_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    done = subprocess.run(
        [*KDIST, "--help"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"\n")


@pytest.mark.parametrize("moment", ["now", "lost", "late", "ignored"])
def test_an_interrupt_that_no_command_handles_exits_alike(moment: str) -> None:
    code = (
        "import atexit, signal, sys, weakref\n"
        "from kdist.cli import main, start\n"
        "def interrupt(*_): signal.raise_signal(signal.SIGINT)\n"
        "def lose():\n"
        "    gone = set()\n"
        "    heard = weakref.ref(gone, interrupt)\n"
        "    del gone\n"
        "    print('goes on')\n"
        "moments = {'now': interrupt, 'lost': lose, 'late': lambda: atexit.register(interrupt)}\n"
        "if sys.argv[1] == 'ignored': signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "main.main = moments.get(sys.argv[1], interrupt)\n"
        "start.main()\n"
    )
    command = [sys.executable, "-c", code, moment]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    heard = (0, b"", b"") if moment == "ignored" else (130, b"", b"\n")
    assert (done.returncode, done.stdout, done.stderr) == heard


def test_a_file_without_read_permission_is_a_one_sentence_error(tmp_path: Path) -> None:
    partition = make_directory(tmp_path / "log")
    partition.chmod(0)
    # Root may read everything: run as another user, who can reach the file's directory.
    who = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}
    for directory in (tmp_path, *list(tmp_path.parents)[:-2]):
        if who:
            directory.chmod(0o755)
    done = run("log", "verify", str(partition), **who)
    partition.chmod(0o755)
    assert (done.returncode, done.stderr) == (1, f"kdist: {partition}: Permission denied\n")


@pytest.mark.parametrize(
    ("is_terminal", "has_answered", "said"),
    [
        (True, False, "kdist: waiting for an answer from slow:9092\n"),
        (True, True, ""),
        (False, False, ""),
    ],
)
def test_a_person_is_soon_told_which_broker_does_not_answer(
    is_terminal: bool,
    has_answered: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def work(cluster: Cluster) -> None:
        if has_answered:
            cluster.brokers = {0: Address("slow", 9092)}
        await asyncio.sleep(0.05)

    monkeypatch.setattr(connecting, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    connecting.ask_cluster(Clients.at("slow:9092"), work)
    assert capsys.readouterr().err == said


def test_a_pipe_whose_reader_goes_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)

        async def scenario() -> None:
            asyncio.get_running_loop().call_soon(os.close, reading)
            await wait(30)

        with pytest.raises(BrokenPipeError):
            asyncio.run(scenario())


def test_output_to_a_file_never_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        asyncio.run(wait(0))
    assert (tmp_path / "out").read_text() == ""


def test_another_cancellation_is_kept() -> None:
    async def scenario() -> None:
        waits = asyncio.ensure_future(wait(30))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(scenario())
