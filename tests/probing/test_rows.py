"""The table: every number of the survey it comes from is there, and this torch gives the verdicts that were found."""

from __future__ import annotations

import math

import pytest
import torch

from gradwright.probing.run import run, sections

SECTIONS = sections()
EVERY = [(section.name, probe) for section in SECTIONS for probe in section.probes]
PROBES = [probe for _, probe in EVERY]
NUMBERS = (
    *(1, *range(4, 13), *range(14, 20), 22, 26, 30, 31),
    *(*range(32, 39), 40, 41, 42, 44, 45, 46, *range(48, 53), 54, 55, 57, 58),
    *(*range(59, 65), *range(66, 76), 77, *range(79, 85), *range(86, 92), *range(93, 97), *range(98, 103)),
    *(*range(104, 109), 109, 110, *range(112, 116), 117, 119, 122, 123, *range(125, 132), *range(133, 141)),
    *(*range(142, 148), 149, 150, 151, 153, 154, 155, 157, *range(159, 165), 165, 166, 169, *range(171, 180)),
)
"""Those of the survey; the numbers between were left out there, and the kinds they were of have letters here."""

MISSING = {"131", "137", "138", "139", "140", "143", "164", "F28", "F29", "F30", "M3"}
"""What torch does not have. A mistake in a probe would look the same."""


surveyed = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="what torch gets wrong was surveyed with torch 2.13"
)


@pytest.fixture(scope="module")
def results():
    return {result.probe.id: result for result in run(EVERY)}


def test_every_number_is_there_and_no_row_is_there_twice():
    ids = [probe.id for probe in PROBES]
    assert len(ids) == len(set(ids))
    assert sorted(int(key) for key in ids if key.isdigit()) == sorted(NUMBERS)
    assert sum(not key.isdigit() for key in ids) > 120


def test_numbers_and_letters_are_in_their_sections():
    for section in SECTIONS:
        assert len({probe.id.rstrip("0123456789") for probe in section.probes}) == 1
        digits = [int(probe.id.lstrip("FMPTR")) for probe in section.probes]
        assert digits == sorted(digits)


def test_a_case_is_plain_text_and_said_once():
    said = [(probe.case, probe.of, probe.dtype) for probe in PROBES]
    assert len(said) == len(set(said))
    for probe in PROBES:
        assert probe.case.isascii()
        assert not set(probe.case) & set("`|\n")


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.id)
def test_the_truth_can_be_returned_in_the_dtype(probe, results):
    largest = torch.finfo(probe.dtype).max
    for number in results[probe.id].wanted:
        assert not math.isnan(number)
        assert math.isinf(number) or abs(number) <= largest


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe.id.startswith("R")], ids=lambda probe: probe.id)
def test_what_is_right_is_still_right(probe, results):
    outcome = results[probe.id].torch
    assert outcome.kind == "right", outcome


@surveyed
def test_what_is_missing_is_what_torch_lacks(results):
    assert {key for key, result in results.items() if result.torch.kind == "missing"} == MISSING
    assert not [key for key, result in results.items() if result.torch.kind == "raises"]
    assert not [
        key for key, result in results.items() if result.forward and result.forward.kind in ("missing", "raises")
    ]


@surveyed
@pytest.mark.parametrize(
    ("key", "kind", "forward"),
    [
        ("1", "nan", "nan"),
        ("6", "zero", "zero"),
        ("7", "inf", None),
        ("19", "inf", "right"),
        ("40", "wrong", "wrong"),
        ("49", "nan", "right"),
        ("57", "nan", "right"),
        ("59", "zero", "zero"),
        ("66", "wrong", "wrong"),
        ("101", "zero", "right"),
        ("109", "detached", "zero"),
        ("126", "not implemented", "not implemented"),
        ("145", "wrong", None),
        ("149", "wrong", "wrong"),
        ("154", "nan", "nan"),
        ("165", "wrong", "right"),
        ("172", "wrong", "not implemented"),
        ("179", "detached", None),
        ("M1", "zero", "zero"),
        ("M11", "right", "zero"),
        ("P8", "right", "nan"),
    ],
)
def test_what_was_found_by_hand(results, key, kind, forward):
    result = results[key]
    assert result.torch.kind == kind
    assert (result.forward.kind if result.forward else None) == forward


@surveyed
def test_no_row_outside_the_last_section_is_right_in_both_modes(results):
    assert [key for key, result in results.items() if result.ok and not key.startswith("R")] == []


def test_what_is_built_is_right_where_torch_is_not(results):
    built = {key: result.stable for key, result in results.items() if result.stable is not None}
    assert len(built) >= 15
    assert {key: outcome for key, outcome in built.items() if outcome.kind != "right"} == {}


def test_the_same_twice(results):
    sample = [pair for pair in EVERY if pair[1].id in ("10", "149", "153", "144", "172", "M8", "F27")]
    for result in run(sample):
        first = results[result.probe.id]
        # repr, because NaN is not equal to itself
        assert repr((result.torch, result.forward, result.wanted)) == repr((first.torch, first.forward, first.wanted))
