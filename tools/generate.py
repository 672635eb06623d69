"""Writes docs/reference from the code; `--check` names what is stale instead, and exits 1.

Each page is a function from the code's own tables to text: the same code gives the same bytes.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import kdist.metrics
from kdist.classic.connector.settings import ConnectorSettings
from kdist.client.admin.client_settings import AdminSettings
from kdist.client.consumer.settings import ConsumerSettings
from kdist.client.producer.settings import ProducerSettings
from kdist.config import broker_rules, foreign, listener_rules, mirror, topic_rules
from kdist.config.agent import AgentSettings
from kdist.config.broker_config import BROKER_TABLE
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import Setting, Synonym, show_human
from kdist.config.kinds import LIMITS, Kind, show_text
from kdist.config.load_job import LoadSettings, TopicLoadSettings
from kdist.config.security import ListenerLimits
from kdist.config.topic import TopicSettings
from kdist.errors import Error
from kdist.metrics.declare import Metrics
from kdist.protocol import versions
from kdist.protocol.api import Api
from kdist.protocol.schema import flexible_since
from kdist.security import rights
from tools.classes_page import classes_page
from tools.page_text import doc_of, page_head, said, table

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"


def settings_page() -> str:
    """Every setting, by scope and subject; the rules; Kafka's settings that kdist lacks."""
    parts = [
        page_head("Settings", SETTINGS_INTRO),
        "## Broker settings\n",
        *(subject_table(s, rows, own_row) for s, rows in by_subject(BROKER_TABLE)),
        "### One listener's own\n",
        LISTENER_INTRO,
        table([own_row(row) for row in ListenerLimits.TABLE]),
        "## Topic settings\n",
        *(subject_table(s, rows, topic_row) for s, rows in by_subject(TopicSettings.TABLE)),
        "## Rules between settings\n",
        rules_table(),
        "## Settings of an agent's own file\n",
        AGENT_INTRO,
        table([own_row(row) for row in AgentSettings.TABLE if row not in SecuritySettings.TABLE]),
        "## Settings of a mirror's own file\n",
        MIRROR_INTRO,
        table([own_row(row) for row in mirror.DESCRIBED]),
        "## Settings of a load's own file\n",
        LOAD_INTRO,
        table([own_row(row) for row in (*LoadSettings.TABLE, *TopicLoadSettings.TABLE)]),
        "## Kafka's settings that kdist refuses\n",
        foreign_list(foreign.REFUSED),
        nothing_asked(),
        "## Kafka's settings that kdist ignores, with a warning\n",
        foreign_list(foreign.IGNORED),
    ]
    return "\n".join(parts)


SETTINGS_INTRO = """\
A broker reads its settings from a Java .properties file. A topic's setting is its own override,
else what the broker's file says under the name in the second column, else the default. Names,
defaults and meanings are Apache Kafka's where a sentence does not say otherwise.

A broker reads its file when it starts. While it runs, a topic's own settings can be changed
(`kdist configs alter topic`), and of the broker's those that are *dynamic* below and all that stand
first in the second column: for one broker (`kdist configs alter broker 1`) or for all of them
(`broker all`). What is given for one goes before what is given for all, that before its file."""

LISTENER_INTRO = """\
What is given as `listener.name.<listener>.<setting>`, in lower case, holds for that listener: every
setting of *TLS* and *SASL*, and these. `sasl.jaas.config`, `sasl.server.callback.handler.class` and
`connections.max.reauth.ms` may also be one mechanism's, as in
`listener.name.clients.scram-sha-512.connections.max.reauth.ms`. The longest prefix wins.
"""

AGENT_INTRO = """\
Its connections are secured by [the settings of all clients](../guides/secure-clients.md), under the
same names: `security.protocol`, `sasl.*` and `ssl.*`.
"""

MIRROR_INTRO = """\
A flow's connections are secured by [the settings of all clients](../guides/secure-clients.md), for
either cluster: `flow.<name>.source.security.protocol`, `flow.<name>.target.security.protocol`.
"""

LOAD_INTRO = """\
`format`, `schema`, `keep.value`, `event.time.field` and `event.time.format` hold for all topics of
the job, or for one as `topic.<topic>.<setting>`. Settings that begin with `spark.` go to Spark.
"""


def by_subject(table: Sequence[Setting]) -> Iterator[tuple[str, list[Setting]]]:
    for subject, rows in itertools.groupby(table, key=lambda row: row.subject):
        yield subject, list(rows)


def subject_table(
    subject: str, rows: Iterable[Setting], cells: Callable[[Setting], dict[str, str]]
) -> str:
    return f"### {subject}\n\n{table([cells(row) for row in rows])}"


def own_row(row: Setting) -> dict[str, str]:
    return {
        "Setting": names_cell(row.names),
        "Default": default_cell(row),
        "Allowed": allowed_cell(row),
        "Meaning": f"{row.doc} *Dynamic.*" if row.is_dynamic else row.doc,
    }


def topic_row(row: Setting) -> dict[str, str]:
    return {
        "Setting": names_cell(row.names),
        "In the broker's file": names_cell(row.broker_names) if row.broker_names else "",
        "Default": default_cell(row),
        "Allowed": allowed_cell(row),
        "Meaning": row.doc,
    }


def names_cell(names: Sequence[Synonym]) -> str:
    first, *others = (f"`{name}`" for name, _ in names)
    return f"{first}, else {', else '.join(others)}" if others else first


def default_cell(row: Setting) -> str:
    if row.is_required or row.default in (None, ()):
        return f"*{show_human(row, row.default)}*"
    text, said = show_text(row.default), show_human(row, row.default)
    if said == "no limit":
        return said
    return f"`{text}`" if said.startswith(text) else f"`{text}` ({said})"


def allowed_cell(row: Setting) -> str:
    """The choices, or the bounds if they are narrower than the number's type."""
    kind = row.shape.kind
    if row.shape.choices:
        return ", ".join(f"`{choice}`" for choice in row.shape.choices)
    if kind in LIMITS and (row.minimum, row.maximum) == LIMITS[kind]:
        return "any number"
    if kind in LIMITS:
        is_bounded = row.maximum != LIMITS[kind][1]
        return f"{row.minimum} to {row.maximum}" if is_bounded else f"{row.minimum} or more"
    if kind is Kind.DOUBLE:
        return f"{row.minimum} {'or more' if row.maximum is None else f'to {row.maximum}'}"
    return {Kind.BOOLEAN: "`true`, `false`", Kind.LIST: "a list"}.get(kind, "text")


def rules_table() -> str:
    groups = (
        ("broker", "refused", broker_rules.REFUSES),
        ("topic", "refused", topic_rules.REFUSES),
        ("listener", "refused", listener_rules.REFUSES),
        ("broker", "a warning", broker_rules.WARNS),
        ("topic", "a warning", topic_rules.WARNS),
    )
    return table(
        [
            {"Rule": doc_of(rule), "Of a": scope, "Otherwise": otherwise}
            for scope, otherwise, rules in groups
            for rule in rules
        ]
    )


def foreign_list(reasons: dict[str, tuple[str, ...]]) -> str:
    return "".join(
        f"- {', '.join(f'`{name}`' for name in names)}: {reason}.\n"
        for reason, names in reasons.items()
    )


def nothing_asked() -> str:
    """The values of refused settings that are accepted all the same."""
    values = (
        f"`{value}` for {', '.join(f'`{name}`' for name in names)}"
        for value, names in foreign.NOTHING.items()
    )
    return f"Accepted, with a warning, where they ask for nothing: no value; {'; '.join(values)}.\n"


def clients_page() -> str:
    """The settings of producers, consumers and connectors, as they are given in Python."""
    parts = [page_head("Settings of the clients", CLIENTS_INTRO)]
    names = "Producer", "Consumer", "Admin"
    tables = zip(names, (ProducerSettings, ConsumerSettings, AdminSettings), strict=True)
    for title, cls in tables:
        parts.append(f"## {title}\n")
        parts += (subject_table(s, rows, client_row) for s, rows in by_subject(cls.TABLE))
    parts += ["## Connector\n", CONNECTOR_INTRO]
    parts += (subject_table(s, r, own_row) for s, r in by_subject(ConnectorSettings.TABLE))
    return "\n".join(parts)


CLIENTS_INTRO = """What `Producer`, `Consumer`, `Admin` and those of `kdist.aio` take, by name.
Names, defaults and meanings are those of Apache Kafka's Java clients, in snake case, where a
sentence does not say otherwise. What is code and not a number or word (encoders, decoders, a
partitioner, a callback handler, interceptors, `on_statistics`) is in the guides:
[writing](../guides/producer.md), [reading](../guides/consumer.md),
[seeing what clients do](../guides/client-metrics.md)."""


CONNECTOR_INTRO = """\
What `kdist.classic.Consumer.create` takes in a mapping ([streams](../guides/connector.md)): names
and defaults are those of Kafka 0.8's consumer where a sentence does not say otherwise.
"""


def client_row(row: Setting) -> dict[str, str]:
    default = default_cell(row) if row.default != "" else "*not set*"
    return own_row(row) | {"Setting": f"`{row.attribute}`", "Default": default}


def metrics_page() -> str:
    """Every metric, by the class that declares it."""
    intro = (
        "What brokers and mirrors show at `/metrics`, in Prometheus's text format; the agent and\n"
        "loads write theirs to a file that the node exporter shows, clients tell\n"
        "[their application](../guides/client-metrics.md). Counters start at 0 with the process,\n"
        "or the client; a gauge that nothing feeds yet shows NaN."
    )
    parts = [page_head("Metrics", intro)]
    for cls in metric_classes():
        rows = [
            {"Metric": f"`{row.name}`", "Type": row.type, "Meaning": row.doc} for row in cls.TABLE
        ]
        parts += [
            f"## {said(cls.__module__.rpartition('.')[2])}\n",
            f"{doc_of(cls)}\n",
            table(rows),
        ]
    return "\n".join(parts)


def metric_classes() -> Iterator[type[Metrics]]:
    """Every class of metrics that a module of kdist.metrics declares."""
    for info in pkgutil.iter_modules(kdist.metrics.__path__, "kdist.metrics."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            is_here = inspect.isclass(value) and value.__module__ == info.name
            if is_here and issubclass(value, Metrics) and value.TABLE:
                yield value


def errors_page() -> str:
    """Every row of the error table."""
    intro = (
        "The codes that kdist answers with. They are Apache Kafka's; the sentences are kdist's.\n"
        "*Retriable*: the same request may succeed later."
    )
    rows = [
        {
            "Code": str(row.code),
            "Name": f"`{row.name}`",
            "Retriable": "yes" if row.retriable else "no",
            "Meaning": row.sentence,
        }
        for row in Error
    ]
    return "\n".join([page_head("Errors", intro), table(rows)])


def protocol_page() -> str:
    """Every implemented API, with its versions and rights."""
    intro = (
        "The requests that kdist speaks, and in which versions: the ends of each range included.\n"
        "From the flexible version on a message is in compact form (KIP-482)."
    )
    rows = [
        {
            "Key": str(api.key),
            "API": api.name,
            "Versions": f"{api.oldest} to {api.newest}",
            "Flexible": flexible_cell(api),
            "For": "brokers only" if api.is_between_brokers else "clients and brokers",
            "Meaning": meaning_of(api),
        }
        for api in versions.TABLE
    ]
    parts = [page_head("Protocol", intro), table(rows), "## Rights\n", RIGHTS_INTRO, rights_table()]
    return "\n".join(parts)


RIGHTS_INTRO = """\
What a request needs where `authorizer.class.name` is set. What is *left out* is not said to be
missing. A *whole* request, or an *entry* of it, is answered TOPIC_, GROUP_, CLUSTER_ or
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, by the type of what was lacking. Read, Write, Delete and
Alter imply Describe, and AlterConfigs implies DescribeConfigs.
"""


def rights_table() -> str:
    rows = [(api.name, rights.ROWS[api.name]) for api in versions.TABLE]
    return table([{"API": name, "Needs": row.needs, "Refused": row.refusal} for name, row in rows])


def flexible_cell(api: Api) -> str:
    since = flexible_since(api.request)
    return f"from {since}" if since <= api.newest else "none"


def meaning_of(api: Api) -> str:
    """The first sentence of the API's file, which begins with the API's name and key."""
    sentence = doc_of(importlib.import_module(api.request.__module__))
    _, _, meaning = sentence.partition(": ")
    return meaning[:1].upper() + meaning[1:]


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
    "classes.md": classes_page,
    "clients.md": clients_page,
    "protocol.md": protocol_page,
}


def stale_pages() -> Iterator[str]:
    """A sentence for each file that differs from what the code generates."""
    for name, page in PAGES.items():
        path = REFERENCE / name
        if not path.exists() or path.read_text() != page():
            yield f"{path.relative_to(ROOT)} is stale: run `make generate`."
    for path in sorted(REFERENCE.glob("*")):
        if path.name not in PAGES:
            yield f"{path.relative_to(ROOT)} is not a page that `make generate` writes."


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    if parser.parse_args(arguments).check:
        stale = list(stale_pages())
        print(*stale, sep="\n", end="\n" if stale else "", file=sys.stderr)
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
