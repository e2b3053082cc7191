"""Results as words: what a cell shows, and in which order the rows come."""

from __future__ import annotations

import json
import math

import pytest
import torch

from gradwright.probing.judge import Outcome
from gradwright.probing.row import Probe
from gradwright.probing.run import Result
from gradwright.probing.text import HEADS, cells, counts, document, numbers, summary, worst_first

NAN = math.nan


def made(kind="right", forward=None, stable=None, got=(1.0,), wanted=(1.0,), error=0.0, **fields):
    probe = Probe(**{"id": "1", "case": "f(x)", "at": (1.0,), "call": torch.sin, "right": lambda x: 1, **fields})
    other = None if forward is None else Outcome(forward)
    return Result(
        probe, "made-up", wanted, Outcome(kind, got, error), other, None if stable is None else Outcome(stable)
    )


def test_a_row():
    result = made(
        "wrong", "zero", "right", (1.5,), (1.0,), 0.5, remedy="g", of="second derivative", dtype=torch.float16
    )
    row = dict(zip(HEADS, cells(result), strict=True))
    assert row == {
        "row": "1",
        "case": "f(x) [2nd]",
        "dtype": "f16",
        "torch says": "1.5",
        "right is": "1",
        "verdict": "wrong 5.0e-01",
        "forward": "zero",
        "gw.stable": "g: right",
    }
    assert cells(made(of="value"))[1] == "f(x) [value]"
    assert cells(made())[-2:] == ("", "")
    assert cells(made(remedy="g"))[-1] == "g: not built yet"


@pytest.mark.parametrize(
    ("kind", "got", "wanted", "error", "said"),
    [
        ("wrong", (1.0,), (1 - 1.25e-9,), 1.25e-9, ("1", "0.99999999875")),
        ("wrong", (100.0305404663086,), (100.00999800099926,), 2.1e-4, ("100.031", "100.01")),
        ("wrong", (1.0, 1.0), (0.0, 1.0), 1.0, ("[1, 1]", "[0, 1]")),
        ("zero", (-0.0,), (4.248354255291589e-18,), 1.0, ("0", "4.248e-18")),
        ("nan", (NAN, 1.0), (0.0, 1.0), None, ("[nan, 1]", "[0, 1]")),
        ("zero", (0.0,) * 9, (0.0,) * 8 + (2.0,), 1.0, ("[..., 0, 0, 0]", "[..., 0, 0, 2]")),
        ("nan", (1.0,) * 3 + (NAN,) + (1.0,) * 5, (1.0,) * 9, None, ("[..., 1, nan, 1, ...]", "[..., 1, 1, 1, ...]")),
        ("wrong", (-0.7,), (-math.inf,), math.inf, ("-0.7", "-inf")),
        ("right", (1.0,) * 5, (1.0,) * 5, 0.0, ("[1, 1, 1, ...]", "[1, 1, 1, ...]")),
        ("detached", None, (1.0,), None, ("no grad_fn", "1")),
        ("not implemented", None, (1.0, 2.0), None, ("raises", "[1, 2]")),
        ("missing", None, (1.0,), None, ("raises", "1")),
        ("raises", (1.0,), (1.0, 2.0), None, ("1", "[1, 2]")),
    ],
)
def test_numbers_show_the_difference(kind, got, wanted, error, said):
    assert numbers(Outcome(kind, got, error), wanted) == said


def test_the_worst_come_first_and_forward_mode_decides_among_equals():
    right, forward, nan, zero, wrong = made(), made(forward="zero"), made("nan"), made("zero"), made("wrong")
    assert worst_first([right, forward, nan, zero, wrong]) == [wrong, zero, nan, forward, right]


def test_counts_and_summary():
    results = [
        made("wrong", "right", stable="right", remedy="g"),
        made("right", "zero", stable="nan", remedy="g"),
        made("right", "right", remedy="g"),
        made("right"),
    ]
    assert counts(results) == "1 wrong, 3 right"
    assert summary(results) == [
        "4 probes: 1 wrong, 3 right",
        "forward mode alone is right in 1, and alone is not right in 1, of 3",
        "gw.stable has a function for 3: 1 right, 1 not right, 1 not built yet",
    ]
    assert summary([made()])[0] == "1 probe: 1 right"


def test_the_document_has_no_number_that_json_lacks():
    (row,) = document([made("nan", "inf", got=(NAN, 1.0), wanted=(-math.inf, 1.0), error=None)])
    assert json.loads(json.dumps(row, allow_nan=False)) == {
        "id": "1",
        "section": "made-up",
        "case": "f(x)",
        "of": "gradient",
        "dtype": "float64",
        "tolerance": 1e-11,
        "wanted": ["-inf", 1.0],
        "torch": {"verdict": "nan", "error": None, "got": ["nan", 1.0], "message": None},
        "forward": {"verdict": "inf", "error": None, "got": None, "message": None},
        "remedy": None,
        "stable": None,
    }
