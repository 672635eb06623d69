"""The settings of the demo's processes, as one would write them into their .properties files."""

from __future__ import annotations

from pathlib import Path

from lab.demo import flights

FLIGHTS = "flights"
HOSTS = "ops.host"  # this machine's operational data, as `kdist agent` publishes it


def mirror_settings(source: str, target: str) -> dict[str, str]:
    """One flow from the source to the target, with both topics under unchanged names."""
    return {
        "flow.demo.source": source,
        "flow.demo.target": target,
        "flow.demo.topics": f"{FLIGHTS},{HOSTS.replace('.', '[.]')}",
        "mirror.refresh.interval.ms": "1000",
    }


def agent_settings(broker: str) -> dict[str, str]:
    """An agent that publishes this host's operational data every second."""
    return {
        "bootstrap.servers": broker,
        "agent.topic": HOSTS,
        "agent.interval.ms": "1000",
        "agent.datacenter": "dc1",
    }


def load_settings(broker: str, output: Path) -> dict[str, str]:
    """A job that loads the mirrored topics, the flights partitioned by day of departure."""
    return {
        "name": "demo",
        "bootstrap.servers": broker,
        "topics": f"{FLIGHTS},{HOSTS}",
        "output": str(output),
        f"topic.{FLIGHTS}.event.time.field": flights.EVENT_TIME,
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
    }
