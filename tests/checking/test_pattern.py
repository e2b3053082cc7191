"""Patterns of sparse Jacobians: found where they hold, not found where they do not, and laid out right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwright.checking.case import Case
from gradwright.checking.pattern import Pattern, dense_pattern, find_pattern
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import x


def pattern(target: Any, *inputs: Any, k: int = 0) -> Pattern:
    return find_pattern(Case(as_subject(target), Sample(inputs)), k, 0)


@pytest.mark.parametrize(
    ("target", "inputs", "k", "pairs", "groups", "rests"),
    [
        (torch.exp, (x(40, 30),), 0, ((0, 0), (1, 1)), 1, 1),
        (torch.relu, (x(40, 30),), 0, ((0, 0), (1, 1)), 1, 1),
        (lambda t: t.softmax(-1), (x(40, 30),), 0, ((0, 0),), 30, 30),
        (lambda t: t.softmax(0), (x(40, 30),), 0, ((1, 1),), 40, 40),
        (lambda t: t.sum(-1), (x(40, 30),), 0, ((0, 0),), 30, 1),
        (lambda t, b: t * b, (x(40, 30), x(30)), 1, ((0, 1),), 1, 40),
        (lambda t, w: t @ w, (x(40, 30), x(30, 20)), 0, ((0, 0),), 30, 20),
        (lambda t, w: t @ w, (x(40, 30), x(30, 20)), 1, ((1, 1),), 30, 40),
        (lambda t: t.t(), (x(40, 30),), 0, (), 1200, 1200),
        (lambda t: t * t.amax(), (x(40, 30),), 0, (), 1200, 1200),
        (lambda t: t.cumsum(0), (x(500),), 0, (), 500, 500),
        (lambda t: t.flip(0), (x(500),), 0, (), 500, 500),
        (torch.exp, (torch.randn(40, 30, dtype=torch.complex128),), 0, ((0, 0), (1, 1)), 2, 2),
    ],
)
def test_found(target: Any, inputs: Any, k: int, pairs: Any, groups: int, rests: int) -> None:
    found = pattern(target, *inputs, k=k)
    assert (found.pairs, found.groups, found.rests) == (pairs, groups, rests)


def test_elements_are_those_behind_each_entry() -> None:
    found = pattern(lambda t: t.softmax(-1), x(40, 30))
    elements = found.elements()  # (group, output element)
    assert elements.shape == (30, 1200)
    assert elements[7, 31 * 30 + 4].item() == 31 * 30 + 7


def test_dense_compares_everything() -> None:
    case = Case(as_subject(lambda t: t.sum(-1)), Sample((x(4, 3),)))
    found = dense_pattern(case, 0, 0)
    assert (found.groups, found.rests) == (12, 4)
    assert found.elements()[5].tolist() == [5] * 4
