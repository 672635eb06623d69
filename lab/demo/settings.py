"""What the demo's processes are told, as one would write it into their files."""

from __future__ import annotations

from pathlib import Path

from lab.demo import flights

FLIGHTS = "flights"
HOSTS = "ops.host"  # this machine's operational data, as `kdist agent` publishes it


def mirror_settings(source: str, target: str) -> dict[str, str]:
    """A flow from one datacenter to the other: both topics, under their own names."""
    return {
        "flow.demo.source": source,
        "flow.demo.target": target,
        "flow.demo.topics": f"{FLIGHTS},{HOSTS.replace('.', '[.]')}",
        "mirror.refresh.interval.ms": "1000",
    }


def agent_settings(broker: str) -> dict[str, str]:
    """This host, looked at every second."""
    return {
        "bootstrap.servers": broker,
        "agent.topic": HOSTS,
        "agent.interval.ms": "1000",
        "agent.datacenter": "dc1",
    }


def load_settings(broker: str, output: Path) -> dict[str, str]:
    """A job that loads what the mirror brings, by the day of departure."""
    return {
        "name": "demo",
        "bootstrap.servers": broker,
        "topics": f"{FLIGHTS},{HOSTS}",
        "output": str(output),
        f"topic.{FLIGHTS}.event.time.field": flights.EVENT_TIME,
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
    }
