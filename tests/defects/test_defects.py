"""Every defect is found by a contract that should find it and called by its name; its correct twin is not accused."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

import pytest

import gradwright as gw
from gradwright.checking.contracts import all_contracts
from gradwright.checking.report import Report
from tests.defects.entries import Defect, all_defects

DEFECTS = all_defects()

pytestmark = pytest.mark.slow  # several hundred whole checks; `pytest -m slow tests/defects`


def known(ids: tuple[str, ...]) -> list[str]:
    """Return those of some contract ids that exist."""
    return [i for i in ids if i in all_contracts()]


def missing(entry: Defect) -> str | None:
    """Return why an entry cannot be found yet, or None."""
    absent = [i for i in entry.expect if i not in all_contracts()]
    if absent:
        return f"{', '.join(absent)}: no such contract yet"
    if entry.reference is not None and "reference" not in inspect.signature(gw.check).parameters:
        return "check takes no reference= yet"
    return None


def run(entry: Defect, which: str, **more: Any) -> Report:
    options = entry.options()
    if "reference" not in inspect.signature(gw.check).parameters:
        options.pop("reference", None)
    if which == "broken":
        options["require"] = known(entry.require)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the subjects are made to be odd; PyTorch warns of some
        return gw.check(entry.subject(which), *entry.arguments(which), seed=3, **options, **more)


def said(report: Report) -> str:
    """Return everything a reader is told of what is wrong."""
    lines = []
    for result in report.results:
        if result.verdict in ("fail", "suspect"):
            lines.append(result.message)
            lines += [f"{f.message} {f.hint or ''} {f.where or ''}" for f in result.findings]
    return "\n".join(lines)


def accusations(report: Report) -> str:
    return "\n".join(f"{r.id}: {r.message}" for r in report.results if r.verdict in ("fail", "suspect"))


def label(entry: Defect) -> str:
    tag = f"{entry.number} " if entry.number is not None else f"{entry.case} " if entry.case else ""
    return f"{entry.group}: {tag}{entry.name}"


def parameters(entries: list[Defect], *, soon: bool) -> list[Any]:
    """Return pytest parameters; with ``soon``, what waits for a contract may fail."""
    made = []
    for entry in entries:
        reason = missing(entry) if soon else None
        marks = [pytest.mark.xfail(reason=reason, strict=False)] if reason else []
        if entry.level == "full":
            marks.append(pytest.mark.slow)
        made.append(pytest.param(entry, id=label(entry), marks=marks))
    return made


@pytest.mark.parametrize("entry", parameters([d for d in DEFECTS if not d.control], soon=True))
def test_found(entry: Defect) -> None:
    if entry.raises is not None:
        with pytest.raises(gw.GradwrightError, match=entry.raises):
            run(entry, "broken")
        return
    report = run(entry, "broken")
    if entry.note is not None:
        assert re.search(entry.note, "\n".join([*report.notes, *(r.message for r in report.results)])), report
        return
    convicted = {r.id for r in report.results if r.verdict in ("fail", "suspect")}
    assert convicted & set(entry.expect), f"not found; accused by {sorted(convicted)}\n{report}"
    named = entry.words is None or re.search(entry.words, said(report))
    assert named, f"found, but `{entry.words}` is not said:\n{said(report)}"


@pytest.mark.parametrize("entry", parameters([d for d in DEFECTS if not d.control and d.twin is not None], soon=False))
def test_twin_passes(entry: Defect) -> None:
    report = run(entry, "twin")
    assert not accusations(report), accusations(report)


@pytest.mark.parametrize("entry", parameters([d for d in DEFECTS if d.control], soon=False))
def test_right_although_it_looks_odd(entry: Defect) -> None:
    report = run(entry, "broken")
    assert not accusations(report), accusations(report)


def test_names_are_unique() -> None:
    labels = [label(entry) for entry in DEFECTS]
    assert len(labels) == len(set(labels))
    numbers = [entry.number for entry in DEFECTS if entry.number is not None]
    assert len(numbers) == len(set(numbers))


def test_expected_contracts_are_ids() -> None:
    for entry in DEFECTS:
        assert entry.control or entry.expect or entry.note or entry.raises
        assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", i) for i in (*entry.expect, *entry.require)), entry.name
