"""A healthy client beside hostile and merely old ones: `make bench-hostile`.

One broker with default settings and a real ZooKeeper. While others do their worst, a client asks it
for its versions, produces a record and fetches one, again and again, each on a connection of its
own. Told are its longest wait, how much the broker's resident memory grew at most and how much of
that is left after ten seconds, and whether the broker has kept its session with ZooKeeper. The
others share a core with the healthy client, which goes before them. With `--beside DIR` the broker
of another checkout of kdist meets the same, after this one's.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import broker_frames as frames
import broker_world
from broker_world import Broker
from kazoo.client import KazooClient
from measuring import resident_bytes

from kdist.cli.shared.client_settings import Clients
from kdist.cli.shared.connecting import ask_cluster
from kdist.client.admin.topics import create_topic
from kdist.client.cluster import Cluster
from kdist.protocol import api_versions, fetch, list_offsets, metadata, produce
from kdist.protocol.frame import RequestHeader, encode_request
from kdist.records.batch import HEADER_SIZE, seal, set_max_timestamp
from kdist.records.build import build_batch
from kdist.records.compression import Codec

WAIT_MS_MAX = 100
PEAK_MIB_MAX, LEFT_MIB_MAX = 256, 64
LEFT_S = 10
_MIB = 1 << 20
_PARTITIONS, _COLD = 1500, 300
_ANSWER_S = 60
_NOISE_S = 3  # for which the healthy client is alone: what it waits then, the machine costs
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8


class Peer(NamedTuple):
    """A connection's requests, and how often it sends all of them."""

    frames: Sequence[bytes]
    times: int = 1
    in_flight_max: int = 1 << 20


class Attack(NamedTuple):
    """What some peers do at the same time."""

    name: str
    peers: Sequence[Peer]


# --- peers --------------------------------------------------------------------------------------


def _play(port: int, peers: Sequence[Peer]) -> None:
    threads = [threading.Thread(target=_send_all, args=(port, each)) for each in peers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _send_all(port: int, peer: Peer) -> None:
    """Send, and read what is answered, until all is answered or the broker has had enough."""
    room = threading.Semaphore(peer.in_flight_max)
    with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S) as connection:

        def read() -> None:
            with contextlib.suppress(OSError, RuntimeError):
                for _ in range(peer.times * len(peer.frames)):
                    frames.receive(connection)
                    room.release()

        reading = threading.Thread(target=read)
        reading.start()
        with contextlib.suppress(OSError):
            for _ in range(peer.times):
                for frame in peer.frames:
                    room.acquire(timeout=_ANSWER_S)
                    connection.sendall(frame)
        reading.join(_ANSWER_S)


# --- requests -----------------------------------------------------------------------------------


def _request(key: int, version: int, body: object) -> bytes:
    return bytes(encode_request(RequestHeader(key, version, 7, "peer"), body))


def _unset(batch: bytearray) -> bytes:
    """As of a client that leaves the newest timestamp unset."""
    set_max_timestamp(batch, 0, -1)
    seal(batch, 0, len(batch))
    return bytes(batch)


def _bomb(codec: Codec) -> bytes:
    batch = build_batch([bytes(63 * _MIB)], timestamp_ms=frames.TIMESTAMP_MS, codec=codec)
    return _unset(batch)


def _members(count: int) -> bytes:
    """A batch whose gzip has many members, all but the last of them empty."""
    whole = build_batch([b"x"], timestamp_ms=frames.TIMESTAMP_MS, codec=Codec.GZIP)
    batch = whole[:HEADER_SIZE] + gzip.compress(b"", mtime=0) * count + whole[HEADER_SIZE:]
    _LENGTH.pack_into(batch, _LENGTH_POSITION, len(batch) - _LENGTH_POSITION - _LENGTH.size)
    return _unset(batch)


def _old_client() -> list[bytes]:
    """Batches of 1,000 records without a newest timestamp, as a Sarama of 2024 writes them."""
    rng = random.Random(1)
    values = [rng.randbytes(250) * 4 for _ in range(1000)]
    codecs = (Codec.NONE, Codec.LZ4, Codec.GZIP, Codec.ZSTD)
    stamp = frames.TIMESTAMP_MS
    return [_unset(build_batch(values, timestamp_ms=stamp, codec=each)) for each in codecs]


def _metadata_of_all() -> bytes:
    return _request(metadata.API.key, 9, metadata.MetadataRequest(topics=None))


def _many_names(size: int) -> bytes:
    """A Metadata request of that many bytes, all of them names of no character."""
    head = _request(metadata.API.key, 1, metadata.MetadataRequest(topics=[]))
    count = (size - len(head)) // 2
    return _resized(head[:-4] + _LENGTH.pack(count) + bytes(2 * count))


def _many_tags(size: int) -> bytes:
    """An ApiVersions request of that many bytes, all of them empty tagged fields."""
    head = _request(api_versions.API.key, 3, api_versions.ApiVersionsRequest())
    count = (size - len(head)) // 6
    tags = b"".join(_varint(tag) + b"\0" for tag in range(1 << 21, (1 << 21) + count))
    return _resized(head[:-1] + _varint(count) + tags)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _resized(frame: bytes) -> bytes:
    return _LENGTH.pack(len(frame) - 4) + frame[4:]


def _old_fetch(topic: str) -> bytes:
    asked = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=_MIB)
    topics = [fetch.FetchTopic(topic=topic, partitions=[asked])]
    body = fetch.FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=_MIB, topics=topics
    )
    return _request(fetch.API.key, 2, body)


def _offsets_by_time(topic: str) -> bytes:
    partitions = [
        list_offsets.ListOffsetsPartition(partition_index=each, timestamp=frames.TIMESTAMP_MS + 1)
        for each in range(_COLD)
    ]
    topics = [list_offsets.ListOffsetsTopic(name=topic, partitions=partitions)]
    return _request(list_offsets.API.key, 5, list_offsets.ListOffsetsRequest(topics=topics))


# --- what the broker is asked for ---------------------------------------------------------------


def attacks(broker: Broker, logs: Path, frame_bytes: int) -> Iterator[Attack]:
    """All of them, each made ready when its turn has come."""
    for codec in (Codec.ZSTD, Codec.GZIP, Codec.LZ4):
        frame = frames.produce_frame("plain", _bomb(codec))
        yield Attack(
            f"63 MiB in {len(frame):,} bytes of {codec.name.lower()}", [Peer([frame], 120)] * 3
        )
    for count, topic in ((50_000, "plain"), (1_000_000, "large")):
        frame = frames.produce_frame(topic, _members(count))
        yield Attack(f"gzip of {count:,} empty members", [Peer([frame])])
    yield Attack("999 Metadata at once", [Peer([_metadata_of_all() * 999])])
    yield Attack(
        f"Metadata of {frame_bytes // 10**6} MB of names", [Peer([_many_names(frame_bytes)])]
    )
    yield Attack(
        f"ApiVersions of {frame_bytes // 10**6} MB of tags", [Peer([_many_tags(frame_bytes)])]
    )
    big = build_batch([bytes(60 * _MIB)], timestamp_ms=frames.TIMESTAMP_MS, codec=Codec.LZ4)
    broker.ask(frames.produce_frame("large", bytes(big)))
    yield Attack("old fetches, to be converted", [Peer([_old_fetch("large")], 50)] * 2)
    old = [frames.produce_frame("plain", each) for each in _old_client()]
    yield Attack("newest timestamps unset", [Peer(old, 100, in_flight_max=5)] * 3)
    os.sync()
    for each in logs.rglob("*"):
        if each.is_file():
            with each.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    frame = _offsets_by_time("cold")
    yield Attack(f"ListOffsets by time of {_COLD} cold partitions", [Peer([frame], 5)] * 2)


def prepare(broker: Broker) -> None:
    """The topics that are asked for."""

    async def create(cluster: Cluster) -> None:
        await create_topic(cluster, "healthy", partitions=1)
        await create_topic(cluster, "plain", partitions=1)
        own = {"max.message.bytes": "33554432"}
        await create_topic(cluster, "large", partitions=1, settings=own)
        await create_topic(cluster, "cold", partitions=_COLD)
        await create_topic(cluster, "many", partitions=_PARTITIONS)

    ask_cluster(Clients.at(f"127.0.0.1:{broker.port}"), create)
    batch, _ = frames.bulk(16 << 10)
    with broker.connect() as connection:
        for partition in range(_COLD):
            for _ in range(4):
                frame = _produce_to("cold", partition, batch)
                frames.check_answer(frame, frames.exchange(connection, frame))


def _produce_to(topic: str, partition: int, batch: bytes) -> bytes:
    data = produce.ProducePartition(index=partition, records=batch)
    body = produce.ProduceRequest(
        acks=1,
        timeout_ms=30_000,
        topic_data=[produce.ProduceTopic(name=topic, partition_data=[data])],
    )
    return _request(produce.API.key, produce.API.newest, body)


# --- measuring ----------------------------------------------------------------------------------


class Found(NamedTuple):
    """What one attack did."""

    contender: str
    attack: str
    longest_ms: float
    peak_mib: float
    left_mib: float
    took_s: float
    is_session_kept: bool

    @property
    def is_good(self) -> bool:
        return (
            self.longest_ms < WAIT_MS_MAX
            and self.peak_mib <= PEAK_MIB_MAX
            and self.left_mib <= LEFT_MIB_MAX
            and self.is_session_kept
        )


class Healthy:
    """A client whose waits are measured, from `start` to `stop`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        record = frames.one_record()
        self._frames = (
            frames.api_versions_frame(),
            frames.produce_frame("healthy", record),
            frames.fetch_frame("healthy", 0, len(record)),
        )
        broker.ask(self._frames[1])
        self._is_over = threading.Event()
        self._longest_s = 0.0
        self._threads = [threading.Thread(target=self._ask, args=(e,)) for e in self._frames]
        for each in self._threads:
            each.start()

    def _ask(self, frame: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self._broker.port), _ANSWER_S) as connection:
            while not self._is_over.wait(0.005):
                begun_s = time.monotonic()
                with contextlib.suppress(TimeoutError):  # which is the longest wait there is
                    frames.exchange(connection, frame)
                self._longest_s = max(self._longest_s, time.monotonic() - begun_s)
                if self._longest_s >= _ANSWER_S:
                    return

    def stop(self) -> float:
        """The longest wait, in milliseconds."""
        self._is_over.set()
        for each in self._threads:
            each.join()
        return 1000 * self._longest_s


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def suffer(broker: Broker, attack: Attack, session: Callable[[], object]) -> Found:
    """Have it come, and measure."""
    pid, session_before = broker.process.pid, session()
    before = resident_bytes(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    healthy, begun_s = Healthy(broker), time.monotonic()
    peers = multiprocessing.get_context("fork").Process(
        target=_play, args=(broker.port, attack.peers)
    )
    peers.start()
    os.setpriority(os.PRIO_PROCESS, peers.pid or 0, 10)
    peers.join(_ANSWER_S)
    if not attack.peers:
        time.sleep(_NOISE_S)
    took_s = time.monotonic() - begun_s
    if peers.is_alive():
        peers.kill()
    longest_ms = healthy.stop()
    peak = _peak_bytes(pid)
    time.sleep(LEFT_S)
    left = resident_bytes(pid)
    peak_mib, left_mib = (peak - before) / _MIB, (left - before) / _MIB
    is_kept = session() == session_before
    return Found(broker.name, attack.name, longest_ms, peak_mib, left_mib, took_s, is_kept)


def run(directory: Path, tree: Path | None, frame_bytes: int, only: str) -> Iterator[Found]:
    """All that a broker of one tree meets."""
    with contextlib.ExitStack() as stack:
        connect = stack.enter_context(broker_world.zookeeper(directory / "zookeeper"))
        logs = directory / "broker"
        broker = stack.enter_context(broker_world.kdist_broker(logs, connect, tree=tree))
        zookeeper = KazooClient(connect)
        zookeeper.start()
        stack.callback(zookeeper.stop)

        def session() -> object:
            found = zookeeper.exists("/brokers/ids/1")
            return found and found.czxid

        prepare(broker)
        yield suffer(broker, Attack("none", []), session)
        for attack in attacks(broker, logs / "logs", frame_bytes):
            if only in attack.name:
                yield suffer(broker, attack, session)


def main() -> None:
    """Measure and print; exit with 1 if a budget is missed by this tree's broker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--beside", metavar="DIR", type=Path, help="another checkout of kdist")
    parser.add_argument("--frame-mb", type=int, default=99, help="of the largest requests")
    parser.add_argument("--only", default="", help="attacks whose names have this")
    arguments = parser.parse_args()
    trees = [None] + ([arguments.beside] if arguments.beside else [])
    print(f"{'attack':45} {'contender':12}     longest      peak      left    took  session")
    bad = 0
    for tree in trees:
        with tempfile.TemporaryDirectory(prefix=".bench-hostile-", dir=".") as name:
            directory = Path(name).absolute()
            for found in run(directory, tree, arguments.frame_mb * 10**6, arguments.only):
                bad += tree is None and not found.is_good
                session = "kept" if found.is_session_kept else "LOST"
                print(
                    f"{found.attack:45} {found.contender:12} {found.longest_ms:8.0f} ms"
                    f" {found.peak_mib:5.0f} MiB {found.left_mib:5.0f} MiB {found.took_s:5.1f} s"
                    f"  {session}{'' if found.is_good else ', MISSED'}",
                    flush=True,
                )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
