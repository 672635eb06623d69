"""A load's file: what it says of the job and of each topic, and what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from kdist.config.faults import ConfigError
from kdist.config.load_job import Step, load_job

FORMAT = Path(__file__).parents[3] / "docs/formats/load-output.md"
SMALL = "bootstrap.servers=b1:9092\ntopics=clicks,ops.host\noutput=/data\n"


def faults(more: str, text: str = SMALL) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        load_job(text + more, "job")
    return refused.value.faults


def test_a_topics_own_setting_goes_before_the_jobs() -> None:
    found = load_job(
        SMALL
        + "event.time.field=at\ntopic.ops.host.event.time.field=timestamp_ms\n"
        + "topic.ops.host.format=bytes\n",
        "job",
    )
    assert found.topics["clicks"].event_time_field == "at"
    assert found.topics["clicks"].format == "json"
    assert found.topics["ops.host"].event_time_field == "timestamp_ms"
    assert found.topics["ops.host"].format == "bytes"


def test_an_ambiguous_name_belongs_to_the_longer_setting() -> None:
    found = load_job(SMALL + "topic.clicks.event.time.format=s\n", "job")
    assert found.topics["clicks"].event_time_format == "s"
    assert found.topics["clicks"].format == "json"


def test_spark_settings_are_passed_to_spark_except_its_master() -> None:
    found = load_job(SMALL + "spark.master=local[3]\nspark.driver.memory=1g\n", "job")
    assert found.job.spark_master == "local[3]"
    assert found.spark == {"spark.driver.memory": "1g"}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("outputs=/x\n", "outputs is not a setting: did you mean output (job, line 4)?"),
        (
            "topic.views.format=json\n",
            "topic.views.format is about a topic that is not in topics (job, line 4).",
        ),
        (
            "topic.clicks.form=json\n",
            "topic.clicks.form does not end in a topic's setting (job, line 4).",
        ),
        (
            "topic.clicks.format=xml\n",
            "topic.clicks.format is 'xml', but must be one of json, bytes (job, line 4).",
        ),
        ("format=xml\n", "format is 'xml', but must be one of json, bytes (job, line 4)."),
        ("event.time.zone=Mars\n", "event.time.zone is 'Mars', which is not a time zone (job)."),
        *(
            (
                f"event.time.format={form}\n",
                f"event.time.format is {form!r}, which has no year: the field must have the date"
                " (job).",
            )
            for form in ("HH:mm", "dd/MM HH:mm", "[yyyy-MM-dd[ ]]HH:mm", "HH:mm 'year'")
        ),
        (
            "name=a b\n",
            "name is 'a b', but must be letters, digits, '.', '_' and '-' (job).",
        ),
    ],
)
def test_a_mistake_is_one_sentence(more: str, sentence: str) -> None:
    assert faults(more) == (sentence,)


def test_a_pattern_with_a_year_is_a_format_of_event_times() -> None:
    for form in ("dd/MM/yyyy HH:mm", "uuuu-DDD[ HH:mm]", "yyyy-MM-dd'T'HH:mm"):
        found = load_job(f"{SMALL}event.time.format={form}\n", "job")
        assert found.topics["clicks"].event_time_format == form


def test_all_mistakes_are_reported_at_once() -> None:
    text = "bootstrap.servers=b1\ntopics=a,a,b c\noutput=data\n"
    assert faults("", text) == (
        "bootstrap.servers has 'b1', but must have host:port (job).",
        "topics has 'b c', which has a character other than ASCII letters, digits, '.', '_' and"
        " '-' (job).",
        "topics names a topic twice (job).",
        "output is 'data', but must be an absolute path (job).",
    )


def test_missing_required_settings_are_reported() -> None:
    assert [each.partition(" must be given")[0] for each in faults("", "")] == [
        "bootstrap.servers",
        "topics",
        "output",
    ]


def test_the_page_of_the_format_tells_every_step_of_a_commit() -> None:
    _, _, steps = FORMAT.read_text().partition("## The steps of a commit")
    assert tuple(re.findall(r"^\| `([a-z-]+)` \|", steps, re.MULTILINE)) == get_args(Step)
