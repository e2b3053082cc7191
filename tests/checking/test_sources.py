from __future__ import annotations

import functools
import pickle

import pytest
import torch
from torch import nn

import gradwright as gw
from gradwright.checking import sources
from gradwright.checking.shown import Part
from gradwright.checking.sources import sources_of
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, NewStyleScale


class Inherited(Exp):
    """Has its rule from another class."""

    @staticmethod
    def forward(ctx, x):
        return Exp.forward(ctx, x)


@gw.custom_gradient
def square(x):
    return x * x


@square.vjp
def square_vjp(g, x):
    return 2 * g * x


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def only(target):
    (source,) = sources_of(as_subject(target))
    return source


def text_of(source, part: Part):
    return dict(source.lines)[part.first]


def test_a_function_class_with_its_methods():
    source = only(NewStyleScale)
    assert source.file.endswith("subjects.py")
    assert [part.role for part in source.parts] == ["forward", "setup_context", "backward"]
    for part in source.parts:
        assert f"def {part.name}(" in text_of(source, part)
        assert part.first < part.last
    numbers = [number for number, _ in source.lines]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_a_rule_from_another_class_has_its_own_listing():
    own, other = sources_of(as_subject(Inherited))
    assert [part.role for part in own.parts] == ["forward"]
    assert [part.role for part in other.parts] == ["backward"]
    assert other.file.endswith("subjects.py")


def test_a_custom_gradient_and_its_rule_are_one_listing():
    for target in (square, functools.partial(square)):
        source = only(target)
        assert [(part.role, part.name) for part in source.parts] == [("forward", "square"), ("backward", "square_vjp")]


def test_a_module_and_a_plain_function():
    assert [part.role for part in only(Doubled()).parts] == ["forward"]
    assert "class Doubled" in only(Doubled()).lines[0][1]
    assert only(text_of).parts[0].name == "text_of"
    assert only(lambda x: x).lines


def test_what_has_no_source_has_no_listing():
    namespace = {}
    exec("def f(x):\n    return x", namespace)
    assert sources_of(as_subject(namespace["f"])) == ()
    assert sources_of(as_subject(torch.sin)) == ()


@pytest.mark.parametrize("limit", [1, 6, 9])
def test_a_long_class_is_cut_to_the_beginning_of_each_part(monkeypatch, limit):
    monkeypatch.setattr(sources, "MAX_LINES", limit)
    source = only(NewStyleScale)
    assert len(source.lines) <= max(limit, 4)
    assert all(any(number == part.first for number, _ in source.lines) for part in source.parts)


def test_a_long_line_is_cut(monkeypatch):
    monkeypatch.setattr(sources, "MAX_WIDTH", 10)
    assert max(len(text) for _, text in only(Exp).lines) == 10


def test_a_report_carries_the_source_of_its_subject():
    report = gw.check(Exp, torch.randn(3, dtype=torch.float64), only="gradient-count")
    assert report.source == sources_of(as_subject(Exp))
    assert pickle.loads(pickle.dumps(report)).source == report.source
