"""Planned work is silenced: in each Alertmanager, before it stops anything and until it is over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deploy_plugins import ROOT
from deploy_site import NEW, Site, site_at
from monitoring_files import Silences, alertmanager

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a play starts hundreds of processes


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


def ends_in_s(silence: dict[str, Any]) -> float:
    return (datetime.fromisoformat(silence["endsAt"]) - datetime.now(UTC)).total_seconds()


def active(silences: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in silences.values() if each["status"]["state"] == "active"]


def labels(silence: dict[str, Any]) -> dict[str, str]:
    assert all(each["isEqual"] and not each["isRegex"] for each in silence["matchers"])
    return {each["name"]: each["value"] for each in silence["matchers"]}


def test_what_the_roll_stops_is_silent_until_it_is_back_and_a_deaf_alertmanager_stops_nothing(
    site: Site,
) -> None:
    site.monitors = ["b", "nowhere"]
    (site.directory / "dead-nowhere").touch()
    with alertmanager() as (port, silences):
        done = site.play(kdist_port_overrides={"alertmanager": port})
    assert site.runs() == {"d01": NEW, "d02": NEW, "d03": NEW}, done.stdout
    assert done.returncode == 0
    brokers = [labels(each) for each in silences.values()]
    assert brokers == [
        {"dc": "dc1", "broker": broker} for broker in ("101", "202", "303") for _ in range(2)
    ]
    assert {each["comment"] for each in silences.values()} == {"run"}
    assert len(active(silences)) == 3
    assert all(ends_in_s(each) < 60 for each in active(silences))
    assert all(ends_in_s(each) > 600 for each in silences.values() if each not in active(silences))
    said = " ".join(done.stdout.split())
    assert "the Alertmanager of nowhere has not taken the silence of planned work" in said


def test_a_silence_begins_before_the_stop_and_is_ended_whatever_happens() -> None:
    for page, stop in (
        ("roles/kdist_roll/tasks/restart.yml", "Stop the broker"),
        ("roles/kdist_zookeeper/tasks/restart.yml", "Stop the server"),
        ("playbooks/replace-disk.yml", "Stop the broker"),
        ("roles/kdist_disks/tasks/retire.yml", "Stop them, also at boot"),
        ("roles/kdist_roll/tasks/reboot.yml", "Stop the brokers, all at once"),
    ):
        text = (ROOT / page).read_text()
        assert 0 < text.index("- name: Silence ") < text.index(f"- name: {stop}")
    for page in (
        "roles/kdist_roll/tasks/broker.yml",
        "roles/kdist_roll/tasks/reboot.yml",
        "roles/kdist_zookeeper/tasks/restart.yml",
        "playbooks/replace-disk.yml",
    ):
        assert "- name: End the silence" in (ROOT / page).read_text().partition(" always:\n")[2]


def test_a_host_is_silenced_by_hand_for_some_hours_and_no_longer(site: Site) -> None:
    """In each of two Alertmanagers, which have the silences of both."""
    site.monitors = ["b", "c"]
    steps = [{"import_playbook": "silence.yml"}]
    with alertmanager() as (port, silences):
        ports = {"alertmanager": port}

        def silence(**given: object) -> list[dict[str, Any]]:
            done = site.play(steps=steps, kdist_port_overrides=ports, host="a", **given)
            assert done.returncode == 0, done.stdout
            assert all(labels(each) == {"dc": "dc1", "host": "a"} for each in active(silences))
            return active(silences)

        first, second = silence(hours=2, reason="a new fan")
        assert first["comment"] == second["comment"] == "by hand: a new fan"
        assert 7000 < ends_in_s(first) <= 7200
        assert [
            1700 < ends_in_s(each) <= 1800 for each in silence(hours=0.5, reason="it fits")
        ] == [
            True,
            True,
        ]
        assert silence(hours=0, reason="done") == []
        refused = site.play(steps=steps, kdist_port_overrides=ports, host="x", hours=2, reason="r")
    assert refused.returncode != 0
    assert "Name a host of the inventory" in refused.stdout


def test_a_silence_that_cannot_be_ended_is_no_success(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the Alertmanager keeps it, or does not answer and may have it."""
    site.monitors = ["b"]
    given = {"steps": [{"import_playbook": "silence.yml"}], "host": "a", "reason": "done"}
    with alertmanager() as (port, silences):
        ports = {"alertmanager": port}
        assert site.play(kdist_port_overrides=ports, hours=2, **given).returncode == 0
        monkeypatch.setattr(Silences, "do_DELETE", lambda self: self._answer(500, "no"))
        kept = site.play(kdist_port_overrides=ports, hours=0, **given)
        assert len(active(silences)) == 1
    silent = site.play(kdist_port_overrides=ports, hours=0, **given)
    for done in (kept, silent):
        assert done.returncode != 0
        assert "The Alertmanager of b has not taken it" in done.stdout
