"""The small files that identify a directory: its broker and cluster, its topic, its last stop.

    meta.properties          Java properties: version 0 with broker.id, or 1 with node.id;
                             cluster.id; directory.id, which tells a disk from any other
    <partition>/partition.metadata    "version: 0", "topic_id: " and the id in base64url
    .kafka_cleanshutdown     {"version":0,"brokerEpoch":147}; empty before Kafka 3.7
    boot.json                {"version":1,"boot_id":"...","content_id":"...","is_adopted":true,
                             "vetted":["..."]}: see `note_boot`

A directory of another broker or cluster is refused before anything in it is touched: otherwise a
disk moved to the wrong slot would lose its replicas. Format: docs/formats/meta-properties.md.
"""

from __future__ import annotations

import json
import logging
import random
import re
import uuid
from typing import NamedTuple

from kdist.config.kinds import INT32_MAX
from kdist.errors import CorruptFile, DiskFull, UserError
from kdist.model import NO_EPOCH, ZERO_UUID, format_uuid, parse_uuid
from kdist.runtime.files import Files
from kdist.storage.checkpoints import parse_number, shown
from kdist.storage.names import META_PROPERTIES, parse_directory_name

logger = logging.getLogger(__name__)

_ID_KEYS = {"0": "broker.id", "1": "node.id"}  # by the file's version
_PARTITION_METADATA_VERSION = 0
_CLEAN_SHUTDOWN_VERSION = 0


class Identity(NamedTuple):
    """The broker and cluster that the directory must belong to."""

    broker_id: int
    cluster_id: str


class MetaProperties(NamedTuple):
    """Whose log directory this is."""

    broker_id: int
    cluster_id: str
    directory_id: str | None = None
    version: int = 0


def encode_meta(meta: MetaProperties) -> bytes:
    """The content of `meta.properties`, as Kafka of either mode reads it."""
    fields = {
        _ID_KEYS[str(meta.version)]: str(meta.broker_id),
        "cluster.id": meta.cluster_id,
        "directory.id": meta.directory_id,
        "version": str(meta.version),
    }
    lines = [f"{key}={_escape(value)}\n" for key, value in fields.items() if value is not None]
    return "".join(lines).encode("ascii")


def decode_meta(content: bytes, path: str) -> MetaProperties:
    """The fields of `meta.properties`; `CorruptFile` if one is missing or cannot be read."""
    fields = _decode_properties(content, path)
    version = _field(fields, "version", path)
    if version not in _ID_KEYS:
        raise CorruptFile(path, None, f"version {shown(version)} is neither 0 nor 1")
    broker_id = _field(fields, _ID_KEYS[version], path)
    return MetaProperties(
        broker_id=parse_number(broker_id, INT32_MAX, path, None),
        cluster_id=_field(fields, "cluster.id", path),
        directory_id=fields.get("directory.id"),
        version=int(version),
    )


def _field(fields: dict[str, str], key: str, path: str) -> str:
    value = fields.get(key)
    if not value:
        raise CorruptFile(path, None, f"has no {key}")
    return value


def _decode_properties(content: bytes, path: str) -> dict[str, str]:
    """`key=value` lines of a Java properties file, without its line continuations."""
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise CorruptFile(path, None, "is not ASCII text") from None
    fields: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise CorruptFile(path, number, f"{shown(stripped)} is not <key>=<value>")
        fields[key.strip()] = re.sub(r"\\(.)", r"\1", value.strip())
    return fields


def _escape(value: str) -> str:
    return re.sub(r"([\\:=#!])", r"\\\1", value)


def check_meta(meta: MetaProperties, broker_id: int, cluster_id: str, path: str) -> None:
    """Raise `UserError` if the directory is not this broker's, of this cluster."""
    if meta.cluster_id != cluster_id:
        raise UserError(
            f"{path} belongs to cluster {meta.cluster_id!r}, but this broker to {cluster_id!r}:"
            " check zookeeper.connect and which disk is mounted here"
        )
    if meta.broker_id != broker_id:
        raise UserError(
            f"{path} belongs to broker {meta.broker_id}, but broker.id is {broker_id}:"
            " check which disk is mounted here"
        )


def claim_directory(
    files: Files, directory: str, broker_id: int, cluster_id: str, rng: random.Random
) -> MetaProperties:
    """Make sure that a log directory is this broker's; claim it if it is blank.

    One without an id of its own gets one, unless the disk is full: then a later start gives it.

    Raises `UserError` (or its subclass `CorruptFile`) if it is another broker's, if its
    `meta.properties` cannot be read, or if it holds partitions and has no such file.
    """
    path = f"{directory}/{META_PROPERTIES}"
    try:
        content = files.read(path)
    except FileNotFoundError:
        return _claim_blank(files, directory, MetaProperties(broker_id, cluster_id, _new_id(rng)))
    meta = decode_meta(content, path)
    check_meta(meta, broker_id, cluster_id, path)
    if meta.directory_id is not None:
        return meta
    identified = meta._replace(directory_id=_new_id(rng))
    try:
        files.replace(path, encode_meta(identified))
    except DiskFull:
        return meta
    return identified


def _new_id(rng: random.Random) -> str:
    return format_uuid(uuid.UUID(int=rng.getrandbits(128), version=4))


def _claim_blank(files: Files, directory: str, meta: MetaProperties) -> MetaProperties:
    if any(parse_directory_name(name) for name in files.list(directory)):
        raise UserError(
            f"{directory} holds partitions and no {META_PROPERTIES} that says whose:"
            " put that file back, or empty the directory"
        )
    files.replace(f"{directory}/{META_PROPERTIES}", encode_meta(meta))
    return meta


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """The content of `partition.metadata`. Kafka ends its last line without a line feed."""
    return f"version: {_PARTITION_METADATA_VERSION}\ntopic_id: {format_uuid(topic_id)}".encode()


def decode_partition_metadata(content: bytes, path: str) -> uuid.UUID:
    """The topic id of `partition.metadata`; `CorruptFile` if it holds anything but one."""
    match = re.fullmatch(rb"version: +([0-9]{1,9})\r?\ntopic_id: +(\S+)\s*", content)
    if match is None:
        raise CorruptFile(path, None, "is not a version line and a topic_id line")
    if int(match[1]) != _PARTITION_METADATA_VERSION:
        raise CorruptFile(path, 1, f"version {int(match[1])} is not {_PARTITION_METADATA_VERSION}")
    topic_id = parse_uuid(match[2].decode("ascii", "replace"))
    if topic_id is None or topic_id == ZERO_UUID:
        raise CorruptFile(path, 2, "the topic id is not valid")
    return topic_id


def load_partition_metadata(files: Files, path: str) -> uuid.UUID | None:
    """The topic id of a partition's directory; None if it has no `partition.metadata`."""
    try:
        content = files.read(path)
    except FileNotFoundError:
        return None
    return decode_partition_metadata(content, path)


def has_topic_id(files: Files, path: str) -> bool:
    """Whether a partition's directory has a topic id that can be read."""
    try:
        return load_partition_metadata(files, path) is not None
    except CorruptFile:
        return False


def save_partition_metadata(files: Files, path: str, topic_id: uuid.UUID) -> None:
    """Put `partition.metadata` in place, atomically and durably."""
    files.replace(path, encode_partition_metadata(topic_id))


class BootNote(NamedTuple):
    """The boot of the host in which a broker last ran on the disk, and the disk's content id."""

    boot_id: str
    content_id: str
    is_adopted: bool = True  # a start has flushed its logs; before that they are from elsewhere
    vetted: tuple[str, ...] = ()  # the content ids by which a controller has judged its replicas

    def encode(self) -> bytes:
        return json.dumps({"version": 1, **self._asdict()}, separators=(",", ":")).encode("ascii")

    @classmethod
    def decode(cls, content: bytes, path: str) -> BootNote:
        """`CorruptFile` if it holds anything else."""
        try:
            found = json.loads(content)
        except ValueError:
            raise CorruptFile(path, None, "is not JSON") from None
        fields = found if isinstance(found, dict) else {}
        boot_id, content_id = fields.get("boot_id"), fields.get("content_id")
        if not isinstance(boot_id, str) or not isinstance(content_id, str):
            raise CorruptFile(path, None, "has no boot_id or no content_id")
        vetted = fields.get("vetted")
        known = tuple(map(str, vetted)) if isinstance(vetted, list) else ()
        return cls(boot_id, content_id, fields.get("is_adopted", True) is True, known)


def note_boot(
    files: Files,
    path: str,
    boot_id: str,
    rng: random.Random,
    *,
    was_clean: bool,
    vetted: str | None = None,
) -> BootNote:
    """Note that a broker runs on the disk in this boot of the host; returns the note.

    The content id is a new one if what the page cache held may be gone: the host was started anew
    since a broker last ran, and that one did not stop cleanly. (A process killed on a running host
    has lost nothing of what it wrote.) Call it before the mark of the clean stop is removed. If the
    disk is full and nothing can be noted, the next start gives a new id too, unless the caller
    finds room for the note till then. `vetted`: the content id by which a controller has judged
    this broker's replicas last, as ZooKeeper has it.
    """
    found = boot_noted(files, path)
    known = () if found is None else found.vetted
    if found is not None and found.content_id == vetted and vetted not in known:
        known = (*known, found.content_id)
    if found is not None and (was_clean or found.boot_id == boot_id):
        note = found._replace(boot_id=boot_id, vetted=known)
    else:
        is_adopted = found is not None and found.is_adopted
        note = BootNote(boot_id, _new_id(rng), is_adopted, known)
    if note != found:
        try:
            files.replace(path, note.encode())
        except DiskFull as error:
            logger.warning("%s: this boot of the host is not noted in %s", error, path)
    return note


def note_adopted(files: Files, path: str, note: BootNote) -> None:
    """Note that a start or a clean stop has flushed all logs, and what `note_boot` had no room for.

    Else a clean stop would have the next start go on with the content id before. Raises `DiskFull`.
    """
    adopted = note._replace(is_adopted=True)
    if boot_noted(files, path) != adopted:
        files.replace(path, adopted.encode())


def boot_noted(files: Files, path: str) -> BootNote | None:
    """What was noted last; None if nothing was, or nothing that can be read."""
    try:
        return BootNote.decode(files.read(path), path)
    except FileNotFoundError:
        return None
    except CorruptFile as fault:
        logger.warning("%s: what the page cache held counts as lost", fault)
        return None


def encode_clean_shutdown(broker_epoch: int = NO_EPOCH) -> bytes:
    """The content of `.kafka_cleanshutdown` (KIP-966), whose existence says all that is read."""
    fields = {"version": _CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def save_clean_shutdown(files: Files, path: str, broker_epoch: int = NO_EPOCH) -> None:
    """Mark the directory as cleanly closed, atomically and durably."""
    files.replace(path, encode_clean_shutdown(broker_epoch))
