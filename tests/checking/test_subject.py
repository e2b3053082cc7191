"""Every kind of subject: names, binding, calling, and refusal of what cannot be checked."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from gradwright.errors import SampleError, SubjectTypeError
from tests.subjects import ClassMethods, Exp, Linear, NewStyleScale, Scale, x


@pytest.mark.parametrize(
    ("target", "kind", "name", "parameters"),
    [
        (Exp, "Function", "Exp", ["x"]),
        (Exp.apply, "Function", "Exp", ["x"]),
        (Scale, "Function", "Scale", ["x", "k"]),
        (NewStyleScale, "Function", "NewStyleScale", ["x", "k"]),
        (ClassMethods, "Function", "ClassMethods", ["x", "dim"]),
        (torch.nn.Linear(3, 2), "module", "Linear", ["input"]),
        (torch.nn.functional.softmax, "callable", "softmax", None),
        (functools.partial(torch.nn.functional.gelu, approximate="none"), "callable", "gelu", None),
        (lambda a, b: a + b, "callable", "<lambda>", ["a", "b"]),
    ],
)
def test_kinds(target: Any, kind: str, name: str, parameters: list[str] | None) -> None:
    subject = as_subject(target)
    assert (subject.kind, subject.name) == (kind, name)
    if parameters is not None:
        assert [p.name for p in subject.parameters or ()] == parameters


def test_function_knows_where_it_is_defined() -> None:
    subject = as_subject(Exp)
    assert subject.file is not None
    assert subject.file.endswith("subjects.py")
    assert subject.line is not None


def test_custom_op_is_named_by_its_schema() -> None:
    @torch.library.custom_op("gradwright_test::cube", mutates_args=())
    def cube(x: Tensor, k: int = 3) -> Tensor:
        return x**k

    subject = as_subject(cube)
    assert (subject.kind, subject.name) == ("custom op", "gradwright_test::cube")
    assert [p.name for p in subject.parameters or ()] == ["x", "k"]
    assert torch.equal(subject.call(subject.bind(Sample((x(3),)))), x(3) ** 3)


def test_keyword_arguments_become_positions() -> None:
    arguments = as_subject(Linear).bind(Sample((x(2, 3),), {"w": x(4, 3)}))
    assert [(a.name, a.origin) for a in arguments] == [("x", "positional"), ("w", "positional")]


def test_defaults_are_filled_in_between_only() -> None:
    class Three(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, a: int = 1, b: int = 2, c: int = 3) -> Tensor:
            return x * a * b * c

    arguments = as_subject(Three).bind(Sample((x(2),), {"b": 5}))
    assert [a.value for a in arguments[1:]] == [1, 5]


def test_module_parameters_become_inputs_by_name_and_frozen_ones_do_not() -> None:
    module = torch.nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    arguments = as_subject(module).bind(Sample((torch.randn(4, 3),)))
    assert {(a.name, a.origin) for a in arguments} == {
        ("input", "positional"),
        ("weight", "parameter"),
        ("bias", "buffer"),
    }


def test_variadic_parameters_are_numbered() -> None:
    subject = as_subject(lambda *xs: sum(xs))
    assert [a.name for a in subject.bind(Sample((x(1), x(1))))] == ["xs[0]", "xs[1]"]


@pytest.mark.parametrize("args", [(), (1, 2, 3, 4)])
def test_wrong_arity_names_the_parameters(args: tuple[Any, ...]) -> None:
    with pytest.raises(SampleError, match=r"Linear: the sample has the arguments .* but forward takes \(x, w, b\)"):
        as_subject(Linear).bind(Sample(args))


def test_unknown_keyword_is_named() -> None:
    with pytest.raises(SampleError, match="'q'"):
        as_subject(Linear).bind(Sample((x(2, 3), x(4, 3)), {"q": 1}))


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (3, "type int"),
        (torch.ones(2), "type Tensor"),
        (torch.nn.Linear, "expected an instance"),
        (dict, "type type"),
    ],
)
def test_what_cannot_be_checked_is_refused(target: Any, text: str) -> None:
    with pytest.raises(SubjectTypeError, match=text):
        as_subject(target)


@pytest.mark.parametrize(("factor", "verdict"), [(3.0, "pass"), (2.0, "fail")])
def test_a_module_may_declare_its_surrogate(factor: float, verdict: str) -> None:
    class Rounded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.k * (x + (x.round() - x).detach())

        def __surrogate__(self, x: Tensor, k: Tensor) -> Tensor:
            rounded = x.round().detach()
            return k * rounded + factor * (x - x.detach())

    assert as_subject(torch.nn.Linear(3, 2)).surrogate is None
    report = gradwright.check(Rounded(), torch.tensor([0.2, 1.7], dtype=torch.float64), level="quick")
    assert report["matches-surrogate"].verdict == verdict


def test_options_by_partial_keep_what_a_function_declares() -> None:
    @gradwright.custom_gradient(surrogate=lambda x, k: k * x)
    def scaled_round(x: Tensor, k: float) -> Tensor:
        return torch.round(x) * k

    @scaled_round.vjp
    def scaled_round_vjp(g: Tensor, k: float) -> Tensor:
        return g * k

    points = torch.tensor([0.3, -1.7, 2.6], dtype=torch.float64)
    declared = as_subject(functools.partial(scaled_round, k=2.0)).surrogate
    assert declared is not None
    assert torch.equal(declared(points), 2 * points)
    report = gradwright.check(functools.partial(scaled_round, k=2.0), points, level="quick")
    assert report["matches-surrogate"].verdict == "pass"


class Twice(torch.nn.Module):
    """A module that has the same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


def test_a_module_with_a_layer_used_twice_is_left_as_it_was() -> None:
    """torch.func.functional_call would leave the numbers of the check in it."""
    module = Twice()
    weight, value = module.first.weight, module.first.weight.detach().clone()
    assert gradwright.check(module, torch.randn(3, 2), level="quick").ok
    assert module.first.weight is weight
    assert torch.equal(weight, value)
