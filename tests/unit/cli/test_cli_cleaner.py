"""The cleaner's own process: what it answers, how it runs, and that it ends with its parent."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kdist.cli.cleaner import serve
from kdist.config.topic import TopicSettings
from kdist.records.batch import Batch, read_header
from kdist.records.build import build_batch
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.runtime.process import AsyncioProcess
from kdist.storage.cleaning.cleaner import ChildWorker
from kdist.storage.cleaning.pass_runner import PassRunner
from kdist.storage.cleaning.requests import (
    Fault,
    MapKeys,
    Report,
    Rewrite,
    Source,
    decode_report,
    encode_report,
    encode_request,
)
from tests.examples import first_of
from tests.unit.storage.storage_world import on_real_disk

FAR = 1 << 62
ARGV = (sys.executable, "-m", "kdist.cli.cleaner")


def requests(path: Path) -> list[MapKeys | Rewrite]:
    """A log with older values of one key, and the requests that clean it."""
    world = on_real_disk(path, topic=TopicSettings(cleanup_policy=("compact",), segment_bytes=400))
    log = world.log()
    for number in range(10):
        data = build_batch([b"%d" % number], [b"key"], timestamp_ms=1)
        log.append_as_leader([Batch(read_header(data), data)], 0, 1)
    log.roll(1)
    world.flush(log)
    sources = tuple(Source(each.base_offset, each.size) for each in log.segments)
    return [
        MapKeys(log.directory, sources, 0, 10, 100, "00" * 16, FAR),
        Rewrite(sources[:-1], 0, 100, 1, 1, True),
    ]


def test_lines_are_answered_by_lines(tmp_path: Path) -> None:
    asked, answers = io.BytesIO(b"".join(map(encode_request, requests(tmp_path)))), io.BytesIO()
    clock = SystemClock()
    serve(asked, answers, PassRunner(Disk(), clock, clock.wait_ms))
    mapped, left = map(decode_report, answers.getvalue().splitlines())
    assert (mapped.end_offset, mapped.keys) == (10, 1)
    assert (left.is_changed, left.seen_records, left.kept_records) == (True, 10, 1)


async def asked_of(worker: ChildWorker, request: MapKeys | Rewrite) -> Report:
    answered: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
    worker.ask(request, answered.set_result)
    async with asyncio.timeout(30):
        return await answered


def test_the_process_answers_at_idle_priority_and_again_after_it_was_killed(tmp_path: Path) -> None:
    mapping, rewriting = requests(tmp_path)

    async def scenario() -> None:
        process = AsyncioProcess(asyncio.get_running_loop())
        worker = ChildWorker(process, (*ARGV, str(os.getpid())))
        assert (await asked_of(worker, mapping)).keys == 1
        pid = worker._child.pid
        assert pid is not None
        child = psutil.Process(pid)
        assert child.ionice().ioclass == psutil.IOPRIO_CLASS_IDLE
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert (await asked_of(worker, rewriting)).kept_records == 1
        os.kill(pid, signal.SIGKILL)
        died = await asked_of(worker, mapping)
        assert died.fault == Fault.DIED
        assert "-9" in died.reason
        assert (await asked_of(worker, mapping)).keys == 1
        second = worker._child.pid
        assert second is not None
        worker.abandon()
        psutil.wait_procs([psutil.Process(second)] if psutil.pid_exists(second) else [], timeout=10)
        await process.cancel_started()
        process.close()

    asyncio.run(scenario())


def test_a_process_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    asked = requests(tmp_path)[0]

    async def scenario() -> None:
        process = AsyncioProcess(asyncio.get_running_loop())
        worker = ChildWorker(process, (str(tmp_path / "nothing"),))
        report = await asked_of(worker, asked)
        assert report.fault == Fault.DIED
        assert "cannot be started" in report.reason
        process.close()

    asyncio.run(scenario())


REPORT = encode_report(Report(end_offset=7))
STRAY = {
    "a warning": b"Warning: deprecated\n" + REPORT,
    "no report": b"[]\n",
    "another's fields": json.dumps([*Report(), 0]).encode() + b"\n",
    "an unknown fault": encode_report(Report(fault="tired")),
    "deep": b"[" * 100_000 + b"\n",
    "no text": bytes(range(1, 256)).replace(b"\n", b"") + b"\n",
    "a long line": b"x" * (2 << 20) + b"\n" + REPORT,
    "half a line": REPORT[:-1],
    "nothing": b"",
}


WHOLE = [what for what, said in STRAY.items() if said.endswith(b"\n")]
CASES = [
    *((what, "closes its output") for what in STRAY),
    *((what, "ends") for what in STRAY),
    *((what, "lives on") for what in WHOLE),
]
CHILD = """
import os, sys, time
sys.stdin.readline()
path, then = sys.argv[1:]
is_first = os.path.exists(f"{path}/said")
with open(f"{path}/said" if is_first else f"{path}/report", "rb") as file:
    answer = file.read()
if is_first:
    with open(f"{path}/said", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}/said", f"{path}/pid")
sys.stdout.buffer.write(answer)
sys.stdout.flush()
if is_first:
    if then == "closes its output":
        os.close(1)
    if then == "ends":
        sys.exit()
time.sleep(60)
"""


@pytest.mark.parametrize("case", first_of(CASES, len(STRAY)))
def test_whatever_a_child_says_instead_of_a_report_is_its_death_alone(
    tmp_path: Path, case: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed if need be, and the next one is asked; the broker's process goes on."""
    what, then = case
    monkeypatch.setattr("kdist.runtime.programs._ENDING_S", 0.1)
    (tmp_path / "said").write_bytes(STRAY[what])
    (tmp_path / "report").write_bytes(REPORT)
    request = MapKeys("", (), 0, 0, 1, "", FAR)

    async def scenario() -> None:
        process = AsyncioProcess(asyncio.get_running_loop())
        worker = ChildWorker(process, (sys.executable, "-c", CHILD, str(tmp_path), then))
        assert (await asked_of(worker, request)).fault == Fault.DIED
        assert await asked_of(worker, request) == Report(end_offset=7)
        first = int((tmp_path / "pid").read_text())
        _, alive = psutil.wait_procs([psutil.Process(first)] if psutil.pid_exists(first) else [], 9)
        assert not alive
        second = worker._child._child
        worker.abandon()
        assert second is not None
        await second.wait()
        await process.cancel_started()
        process.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_ends_with_its_parent(how: signal.Signals) -> None:
    code = (
        "import subprocess, sys, os, time;"
        f"c = subprocess.Popen([{sys.executable!r}, '-m', 'kdist.cli.cleaner', str(os.getpid())],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE);"
        "print(c.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(how)
        parent.wait()
    gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone
