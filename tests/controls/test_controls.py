"""Nothing is said against subjects that are right, at awkward points and at ordinary ones."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import gradwright as gw
from gradwright.checking.contracts import all_contracts
from gradwright.checking.report import Report
from tests.controls.entries import Control, all_controls

CONTROLS = all_controls()
SLOW_CONTRACTS = [i for i in all_contracts() if i.startswith("compile") or i == "export"]


def accusations(report: Report) -> str:
    return "\n".join(f"{r.id}: {r.verdict}: {r.message}" for r in report.results if r.verdict in ("fail", "suspect"))


def check(entry: Control, **options: Any) -> Report:
    subject, inputs = entry.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of some of the odder calls
        return gw.check(subject, *inputs, **entry.options, **options)


def parameters() -> list[Any]:
    return [pytest.param(entry, id=f"{entry.group}: {entry.name}") for entry in CONTROLS]


@pytest.mark.slow
@pytest.mark.parametrize("entry", parameters())
def test_quick(entry: Control) -> None:
    report = check(entry, level="quick", skip=SLOW_CONTRACTS, seed=5)
    assert not accusations(report), accusations(report)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("entry", parameters())
def test_standard(entry: Control, seed: int) -> None:
    report = check(entry, level="standard", skip=SLOW_CONTRACTS, seed=seed)
    assert not accusations(report), accusations(report)


def test_there_are_enough_and_their_names_are_unique() -> None:
    names = [f"{entry.group}: {entry.name}" for entry in CONTROLS]
    assert len(names) == len(set(names))
    assert len(names) >= 300
