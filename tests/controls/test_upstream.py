"""The faults of PyTorch that are excused are still faults."""

from __future__ import annotations

import warnings

import pytest

from tests.controls.upstream import FAULTS

IN_THE_LIST_ONLY = "linear_cross_entropy"
"""Needs PyTorch's own list of operators, which takes seconds to import."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == IN_THE_LIST_ONLY else n for n in FAULTS]
)
def test_still_there(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert FAULTS[name].still_there(), f"{name} is mended: remove it from the table of known faults"
