"""Nothing is said against PyTorch's own operators on PyTorch's own samples, apart from known faults."""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import pytest

import gradwright as gw
from gradwright.checking.contracts import all_contracts
from tests.controls.op_db import operators, samples
from tests.controls.upstream import excused

pytestmark = pytest.mark.slow

PARTS = 40
"""The list is too long to import at collection, so it is dealt out to this many tests."""
SAMPLES = int(os.environ.get("GRADWRIGHT_OP_DB_SAMPLES", "3"))
SLOW_CONTRACTS = [i for i in all_contracts() if i.startswith("compile") or i == "export"]
NOT_RUN = (
    "sparse.sampled_addmm",
    "sparse.mm.reduce",
)
"""Operators that take compressed sparse tensors, which are not supported."""


@functools.cache
def every_operator() -> list[tuple[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(name, op) for name, op in operators().items() if name not in NOT_RUN]


@pytest.mark.parametrize("part", range(PARTS))
def test_operators(part: int) -> None:
    accused = []
    for name, op in every_operator()[part::PARTS]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in samples(name, op, SAMPLES):
                report = gw.check(sample.function, *sample.args, kwargs=sample.kwargs, skip=SLOW_CONTRACTS, seed=1)
                accused += [
                    f"{sample.name}: {result.id}: {result.message}"
                    for result in report.results
                    if result.verdict in ("fail", "suspect") and not excused(name, result.id)
                ]
    assert not accused, "\n".join(accused)


def test_the_list_is_long() -> None:
    assert len(every_operator()) > 500
