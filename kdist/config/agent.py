"""The settings of `kdist agent`, which runs once per host. They are never in a broker's file."""

from __future__ import annotations

from collections.abc import Iterator

from kdist.config.addresses import unreachable
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import setting, settings
from kdist.config.faults import raise_if_any, sentence_at
from kdist.config.foreign import unknown_names
from kdist.config.kinds import int32
from kdist.config.layers import Layer, Source, resolve
from kdist.config.texts import parse_properties


@settings
class AgentSettings(SecuritySettings):
    """What the agent is given. How its connections are secured, under the names of all clients."""

    PREFIX = "agent."

    bootstrap_servers: str = setting(
        "bootstrap.servers",
        subject="Agent",
        doc="Brokers of the cluster that records go to, as `host1:9092,host2:9092`.",
    )
    host: str | None = setting(
        default=None,
        doc="The host's name, which is the key of its records; unset, the system's host name.",
    )
    datacenter: str | None = setting(default=None, doc="Where the host is, for its records.")
    rack: str | None = setting(default=None, doc="What fails together with the host.")
    topic: str = setting(default="ops.host", doc="Where records go. The agent does not create it.")
    interval_ms: int32 = setting(
        default=10_000,
        minimum=100,
        doc="How often the host's state is read; each reading is a record.",
    )
    queue_records: int32 = setting(
        default=1_000,
        minimum=1,
        doc="How many records are kept while no broker takes them; then the oldest are dropped.",
    )
    smartctl: str | None = setting(
        default=None, doc="The program that reads the disks' health; unset, it is not read."
    )
    smart_interval_ms: int32 = setting(
        default=600_000, minimum=1_000, doc="How often the disks' health is read."
    )
    zookeeper: str | None = setting(
        default=None, doc="The ZooKeeper server of this host, as `host:2181`; unset, there is none."
    )
    data_dir: str = setting(
        "agent.data.dir",
        default="/data",
        doc="The directory below which the data disks are mounted, each under its name.",
    )
    wanted_dir: str = setting(
        "agent.wanted.dir",
        default="/etc/kdist/wanted",
        doc="The directory of files that say what each broker of the host shall run.",
    )
    not_applied_dir: str = setting(
        "agent.not.applied.dir",
        default="/etc/kdist/not_applied.d",
        doc="The directory of files in which each role lists what the host did not accept.",
    )
    canary_topic: str | None = setting(
        default=None,
        doc="The topic through which the agent probes every broker, and which it creates and keeps "
        "in shape; unset, it probes none.",
    )
    canary_interval_ms: int32 = setting(
        default=10_000, minimum=100, doc="How often each broker is probed."
    )
    canary_timeout_ms: int32 = setting(
        default=10_000, minimum=1, doc="How long a probe may take; then it has failed."
    )
    metrics_file: str | None = setting(
        default=None,
        doc="A `.prom` file for the node exporter's textfile collector; unset, none is written.",
    )


def load_agent(text: str, source: str) -> AgentSettings:
    """The settings in the text of a .properties file; `source` names the file in messages.

    Raises `ConfigError` with all faults.
    """
    properties = parse_properties(text, source)
    layer = Layer(Source.STATIC_BROKER_CONFIG, properties.given)
    outcome = resolve(AgentSettings.TABLE, (layer,), source)
    unknown = unknown_names(properties.given, AgentSettings.TABLE)
    raise_if_any((*properties.faults, *unknown, *outcome.faults.values()))
    loaded = AgentSettings(**outcome.values)
    raise_if_any(_address_faults(loaded, source))
    return loaded


def _address_faults(loaded: AgentSettings, source: str) -> Iterator[str]:
    for name, text in (
        ("bootstrap.servers", loaded.bootstrap_servers),
        ("agent.zookeeper", loaded.zookeeper),
    ):
        for each in unreachable(text) if text else ():
            yield sentence_at(source, f"{name} has {each!r}, but must have host:port")
