"""The examples are what they say: the tour is right, and every mistake in the broken file is caught and named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from examples import verify
from gradwright import cli

Subjects = list[dict[str, Any]]


def check(path: str, folder: Path) -> tuple[int, Subjects]:
    document = folder / "report.json"
    status = cli.main(["check", str(verify.ROOT / path), "--json", str(document)])
    return status, json.loads(document.read_text(encoding="utf-8"))["subjects"]


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Subjects]:
    return check(verify.TOUR, tmp_path_factory.mktemp("tour"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Subjects]:
    return check(verify.BROKEN, tmp_path_factory.mktemp("broken"))


def test_the_tour_passes_whole(tour: tuple[int, Subjects]) -> None:
    status, subjects = tour
    assert status == 0
    assert verify.problems_of_tour(subjects) == []
    assert [s["name"] for s in subjects] == [
        "MyExp",
        "RoundSTE",
        "SetupContextExp",
        "SetupContextRound",
        "Scale",
        "NumpySinh",
        "NumpyCosh",
        "SinCos",
    ]
    verdicts = {(s["name"], row["id"]): row["verdict"] for s in subjects for row in s["contracts"]}
    assert {key: verdict for key, verdict in verdicts.items() if verdict not in ("pass", "skipped")} == {}


def test_the_tour_shows_where_samples_come_from(tour: tuple[int, Subjects]) -> None:
    origins = {subject["name"]: {sample["provenance"] for sample in subject["samples"]} for subject in tour[1]}
    assert origins.pop("SetupContextExp") <= {"typed", "synthesised"}
    assert set.union(*origins.values()) == {"declared"}
    assert {subject["name"]: len(subject["samples"]) for subject in tour[1]}["Scale"] == 2


def test_every_mistake_is_caught_and_named(broken: tuple[int, Subjects]) -> None:
    status, subjects = broken
    assert status == 1
    assert verify.problems_of_broken(subjects) == []
    assert {subject["name"] for subject in subjects if not subject["ok"]} == set(verify.EXPECTED)


@pytest.mark.parametrize("name", verify.EXPECTED)
def test_a_mistake_that_is_missed_would_be_noticed(name: str, broken: tuple[int, Subjects]) -> None:
    subjects = copy.deepcopy(broken[1])
    contract = verify.EXPECTED[name][0]
    rows = [row for s in subjects if s["name"] == name for row in s["contracts"] if row["id"] == contract]
    for row in rows:
        row["message"], row["hint"] = "something", None
    assert len(verify.problems_of_broken(subjects)) == 1
    for row in rows:
        row["verdict"] = "pass"
    assert len(verify.problems_of_broken(subjects)) == 1
    assert len(verify.problems_of_broken([s for s in subjects if s["name"] != name])) == 1


def test_a_tour_that_fails_would_be_noticed(tour: tuple[int, Subjects]) -> None:
    subjects = copy.deepcopy(tour[1])
    subjects[0]["ok"] = False
    assert len(verify.problems_of_tour(subjects)) == 1
