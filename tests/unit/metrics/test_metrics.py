"""Metrics are counted as plain attributes and shown in a format that Prometheus reads."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import kdist.metrics
from kdist.metrics.declare import (
    SECONDS,
    Family,
    Histogram,
    Metric,
    Metrics,
    Reading,
    counter,
    gauge,
    histogram,
    metrics,
    reading,
)
from kdist.metrics.exposition import Exposition
from kdist.metrics.storage import StorageMetrics

NAME = re.compile(r"kdist(_[a-z]+){2,}")
# Prometheus counts in base units, written out: what a name may not end with.
OTHER_UNITS = {"ms", "us", "ns", "millis", "minutes", "kb", "mb", "kib", "mib", "percent"}


@metrics
class RequestMetrics(Metrics):
    """What a package with requests would count."""

    PREFIX = "kdist_request_"

    handled: int = counter("Requests handled.")
    waiting: int = gauge("Requests that wait.", name="kdist_request_waiting_requests")
    seconds: Histogram = histogram("Time taken.", bounds=(0.5, 1.0))
    memory: Reading = reading("Memory held.", name="kdist_request_memory_bytes")


def declared() -> Iterator[Metric]:
    """Every row of every class that the package declares."""
    for info in pkgutil.iter_modules(kdist.metrics.__path__, "kdist.metrics."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and issubclass(value, Metrics):
                yield from value.TABLE


def samples_of(exposition: Exposition) -> dict[tuple[str, tuple[str, ...]], float]:
    """What Prometheus's own parser reads: values by name and the values of its sorted labels."""
    families = text_string_to_metric_families(exposition.render().decode())
    return {
        (sample.name, tuple(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def shown(group: Metrics) -> dict[str, float]:
    exposition = Exposition()
    exposition.add(group)
    return {name: value for (name, labels), value in samples_of(exposition).items() if not labels}


@pytest.mark.parametrize("row", list(declared()), ids=lambda row: row.name)
def test_a_name_follows_the_convention(row: Metric) -> None:
    assert NAME.fullmatch(row.name)
    assert row.name.endswith("_total") == (row.type == "counter")
    assert row.name.removesuffix("_total").rpartition("_")[2] not in OTHER_UNITS
    assert row.doc.endswith(".")


def test_no_name_is_declared_twice() -> None:
    names = [row.name for row in declared()]
    assert len(names) == len(set(names)) > 10


def test_what_is_counted_is_shown() -> None:
    storage = StorageMetrics()
    storage.appended_bytes += 65536
    storage.appended_bytes += 1
    storage.partitions = lambda: 7
    values = shown(storage)
    assert values["kdist_log_appended_bytes_total"] == 65537
    assert values["kdist_log_appended_records_total"] == 0
    assert values["kdist_log_open_partitions"] == 7


def test_every_declared_metric_is_shown_with_its_type_and_sentence() -> None:
    exposition = Exposition()
    exposition.add(StorageMetrics())
    text = exposition.render().decode()
    for row in StorageMetrics.TABLE:
        assert f"# HELP {row.name} {row.doc}\n# TYPE {row.name} {row.type}\n" in text


def test_a_reading_is_taken_at_each_scrape_and_is_nan_before_it_is_given() -> None:
    group = RequestMetrics()
    assert math.isnan(shown(group)["kdist_request_memory_bytes"])
    held = [5, 6]
    group.memory = lambda: held.pop()
    assert [shown(group)["kdist_request_memory_bytes"] for _ in range(2)] == [6, 5]


def test_a_group_has_slots_so_that_a_misspelt_count_fails() -> None:
    with pytest.raises(AttributeError):
        StorageMetrics().apended_bytes = 1  # type: ignore[attr-defined]


def test_groups_do_not_share_their_histograms() -> None:
    first, second = RequestMetrics(), RequestMetrics()
    first.seconds.observe(0.1)
    assert (first.seconds.count, second.seconds.count) == (1, 0)


def test_a_family_shows_a_group_for_each_label_it_counted_in() -> None:
    family = Family(RequestMetrics, "api", "listener")
    family["Produce", "CLIENT"].handled += 2
    family["Fetch", "CLIENT"].handled += 3
    family["Fetch", "CLIENT"].seconds.observe(0.7)
    exposition = Exposition()
    exposition.add_family(family)
    values = samples_of(exposition)
    assert values["kdist_request_handled_total", ("Produce", "CLIENT")] == 2
    assert values["kdist_request_handled_total", ("Fetch", "CLIENT")] == 3
    assert values["kdist_request_seconds_bucket", ("Fetch", "0.5", "CLIENT")] == 0
    assert values["kdist_request_seconds_bucket", ("Fetch", "1.0", "CLIENT")] == 1
    assert values["kdist_request_seconds_sum", ("Fetch", "CLIENT")] == 0.7


def test_a_family_forgets_a_group_that_is_taken_out() -> None:
    family = Family(RequestMetrics, "topic")
    family["logs",].handled += 1
    del family["logs",]
    exposition = Exposition()
    exposition.add_family(family)
    assert not samples_of(exposition)


def test_a_family_takes_as_many_labels_as_it_has() -> None:
    with pytest.raises(AssertionError, match="labels"):
        Family(RequestMetrics, "api")["Produce", "CLIENT"]


def test_another_collector_is_shown_beside_the_groups() -> None:
    exposition = Exposition()
    exposition.add(StorageMetrics())
    exposition.add_process()
    values = samples_of(exposition)
    assert values["process_open_fds", ()] > 0
    assert values["kdist_log_refused_appends_total", ()] == 0


@given(st.lists(st.floats(0, 100) | st.sampled_from(SECONDS)))
def test_a_bucket_counts_the_values_at_or_below_its_bound(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert dict(histogram.buckets()) == {
        bound: sum(value <= bound for value in values) for bound in (*SECONDS, math.inf)
    }
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0)])
def test_the_bounds_of_a_histogram_rise(bounds: tuple[float, ...]) -> None:
    with pytest.raises(AssertionError):
        Histogram(bounds)


def test_values_have_the_names_and_labels_of_the_text() -> None:
    family = Family(RequestMetrics, "api")
    family["Produce",].handled += 2
    family["Produce",].seconds.observe(0.7)
    exposition = Exposition(client_id="orders")
    exposition.add_family(family)
    values = exposition.values()
    assert values['kdist_request_handled_total{api="Produce"}'] == 2
    assert values['kdist_request_seconds_count{api="Produce"}'] == 1
    assert values['kdist_request_seconds_sum{api="Produce"}'] == 0.7
    assert samples_of(exposition)["kdist_request_handled_total", ("Produce", "orders")] == 2


def test_what_several_have_is_shown_once_with_the_labels_of_each() -> None:
    expositions = [Exposition(client_id=name) for name in ("a", "b")]
    for number, each in enumerate(expositions):
        group = RequestMetrics()
        group.handled = number
        each.add(group)
    text = Exposition.render(*expositions).decode()
    assert text.count("# TYPE kdist_request_handled_total counter") == 1
    assert 'kdist_request_handled_total{client_id="a"} 0.0' in text
    assert 'kdist_request_handled_total{client_id="b"} 1.0' in text


def test_a_family_that_is_made_at_each_scrape_shows_what_it_has_then() -> None:
    topics = ["a"]

    def made() -> Family[RequestMetrics]:
        family = Family(RequestMetrics, "topic")
        for each in topics:
            family[each,].waiting = 1
        return family

    exposition = Exposition()
    exposition.add_made(made)
    topics[:] = ["b", "c"]
    shown_now = [name for name in exposition.values() if "waiting" in name]
    assert shown_now == [f'kdist_request_waiting_requests{{topic="{each}"}}' for each in "bc"]
