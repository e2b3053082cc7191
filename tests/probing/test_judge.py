"""The verdict on numbers, and that every kind is given for what it is meant for."""

from __future__ import annotations

import math

import pytest
from mpmath import mp

from gradwright.probing.judge import KINDS, judge

INF = math.inf
NAN = math.nan


@pytest.mark.parametrize(
    ("got", "wanted", "kind", "error"),
    [
        ([1.0], [1], "right", 0),
        ([1.0 + 2**-52], [1], "right", 2**-52),
        ([1.0 + 1e-9], [1], "wrong", 1e-9),
        ([0.0], [1], "zero", 1),
        ([-0.0, 0.0], [0, "1e-300"], "zero", 1),
        ([0.0, 2.0], [1, 2], "wrong", 0.5),
        ([0.0], [0], "right", 0),
        ([1e-3], [0], "wrong", 1e-3),
        ([NAN, 1.0], [0, 1], "nan", None),
        ([NAN], ["inf"], "nan", None),
        ([INF], [1], "inf", None),
        ([INF], ["-inf"], "inf", None),
        ([INF], ["inf"], "right", 0),
        ([-0.7], ["-inf"], "wrong", INF),
        ([0.0], ["-inf"], "zero", INF),
        ([INF, 3.0], ["inf", 2], "wrong", 0.5),
        ([1.0, 1e-40], [1, "1e-60"], "right", 1e-40),
    ],
)
def test_each_verdict(got, wanted, kind, error):
    outcome = judge(got, [mp.mpf(number) for number in wanted], 1e-11)
    assert outcome.kind == kind
    assert outcome.error == (None if error is None else pytest.approx(error, rel=1e-6))
    assert outcome.got == tuple(got)


def test_the_error_is_of_the_exact_number_and_not_of_its_rounding():
    with mp.workdps(50):
        third = mp.mpf(1) / 3
        assert 0 < judge([1 / 3], [third], 1e-11).error < 2**-53


def test_what_is_below_the_dtype_is_zero():
    assert judge([0.0], [mp.mpf("1e-346")], 1e-11, 5e-324).kind == "right"
    assert judge([0.0], [mp.mpf("1e-320")], 1e-11, 5e-324).kind == "zero"


def test_another_number_of_elements_is_told():
    outcome = judge([1.0], [mp.mpf(1), mp.mpf(1)], 1e-11)
    assert (outcome.kind, outcome.message) == ("raises", "1 numbers were returned; 2 are true")


def test_what_is_silent_comes_first():
    assert KINDS[:3] == ("wrong", "zero", "detached")
    assert KINDS[-1] == "right"
    assert str(judge([2.0], [mp.mpf(1)], 1e-11)) == "wrong 1.0e+00"
    assert str(judge([1.0], [mp.mpf(1)], 1e-11)) == "right"
