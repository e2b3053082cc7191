"""Containers are taken apart and put together again, and what does not fit is named."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gradwright.authoring import trees
from gradwright.errors import RuleError

Point = collections.namedtuple("Point", ["x", "y"])


@dataclass(frozen=True)
class Frozen:
    value: Tensor
    k: int = 2

    def __post_init__(self) -> None:
        assert isinstance(self.value, Tensor), "not run again"


A, B = torch.zeros(1), torch.ones(2)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (A, 1),
        (None, 0),
        (3, 0),
        ([A, B], 2),
        ((A, (B, "text", [A])), 3),
        ({"a": A, 3: {"b": B}}, 2),
        (Point(A, 2), 1),
        (Frozen(A), 1),
        ([], 0),
        (object, 0),
        (collections.OrderedDict(a=A), 1),  # known to torch only
    ],
)
def test_round_trip(value: Any, count: int) -> None:
    leaves: list[Tensor] = []
    structure = trees.flatten(value, leaves)
    assert len(leaves) == trees.count(structure) == count
    again = trees.rebuild(structure, iter(leaves))
    assert type(again) is type(value)
    assert again is value or repr(again) == repr(value)


def test_a_frozen_dataclass_is_copied_without_its_init() -> None:
    leaves: list[Tensor] = []
    structure = trees.flatten(Frozen(A), leaves)
    copy = trees.rebuild(structure, iter([None]), statics=False)
    assert (copy.value, copy.k) == (None, None)


def test_a_foreign_object_is_a_constant() -> None:
    packed = PackedSequence(A, torch.tensor([1]))
    leaves: list[Tensor] = []
    trees.flatten(packed, leaves)
    assert leaves  # a named tuple of torch
    assert trees.flatten(re.compile("x"), []) == trees.Static(re.compile("x"))


@pytest.mark.parametrize(
    ("value", "given", "found"),
    [
        (A, None, [None]),
        ([A, B], [A, None], [A, None]),
        ([A, B], (A, B), [A, B]),
        ({"a": A, "b": B}, {"b": B}, [None, B]),
        (Point(A, B), {"y": B}, [None, B]),
        (Point(A, B), Point(None, B), [None, B]),
        ((A, 3), (A, "ignored"), [A]),
        (None, A, []),
    ],
)
def test_what_fits(value: Any, given: Any, found: list[Any]) -> None:
    matched: list[Tensor | None] = []
    trees.match(trees.flatten(value, []), given, "f", matched)
    assert len(matched) == len(found)
    assert all(a is b for a, b in zip(matched, found))


@pytest.mark.parametrize(
    ("value", "given", "text"),
    [
        (A, 3.0, "f a float; expected a tensor, or None for zero."),
        ([A, B], [A], "f a list of 1; expected the same structure (2 values: 0, 1), or None for zero."),
        ([A, B], A, "f a Tensor; expected the same structure"),
        ({"a": A}, {"b": A}, "f a value at 'b'; expected one of 'a'."),
        ({"a": [A]}, {"a": [3]}, "f at 'a' at 0 a int; expected a tensor"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, given: Any, text: str) -> None:
    with pytest.raises(RuleError, match=re.escape(text)):
        trees.match(trees.flatten(value, []), given, "f", [])


def test_outputs_are_made_distinct() -> None:
    x = torch.ones(2)
    plain = trees.distinct([x, x], [x], copies=False, aliases=False)
    assert plain[0] is x
    assert plain[1] is not x
    (alias,) = trees.distinct([x], [x], copies=False, aliases=True)
    assert alias is not x
    assert alias.data_ptr() == x.data_ptr()
    (copy,) = trees.distinct([x], [x], copies=True, aliases=True)
    assert copy.data_ptr() != x.data_ptr()
    (copy,) = trees.distinct([x.view_as(x)], [x], copies=True, aliases=True)
    assert copy.data_ptr() != x.data_ptr(), "forward mode wants tangents of views to be views"
