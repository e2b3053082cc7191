"""Inputs are found for what can run, and a reason is given for what cannot."""

import random
import sys
import textwrap
import time
import warnings
from typing import Any, Literal, Optional

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking import synthesis as synthesis_module
from gradwright.checking.case import Case
from gradwright.checking.subject import as_subject
from gradwright.checking.synthesis import MAX_TRIES, synthesise


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch):
    """What is found depends on the number of tries alone; tests of the limits on time set their own."""
    monkeypatch.setattr(synthesis_module, "SECONDS_A_TRY", 60.0)
    monkeypatch.setattr(synthesis_module, "MAX_SECONDS", 300.0)


def make(forward, backward=lambda ctx, g: g, name="F"):
    """A Function from two plain functions."""
    return type(name, (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def found(function, seed=0):
    subject = as_subject(function)
    result = synthesise(subject, seed)
    assert result.reason is None, result.reason
    assert result.samples
    for sample in result.samples:
        Case(subject, sample)  # a sample is a sample: the checker takes it
    return result


def shapes(sample):
    return [tuple(a.shape) if isinstance(a, Tensor) else a for a in sample.args]


def test_one_tensor_is_found_at_once_in_float64():
    result = found(make(lambda ctx, x: x.exp(), lambda ctx, g: g))
    (x,) = result.samples[0].args
    assert x.shape == (3, 4)
    assert x.dtype == torch.float64
    assert x.abs().min() > 0.1  # not at the kink
    assert (x < 0).any()
    assert (x > 0).any()
    assert result.samples[0].provenance == "synthesised"
    assert "try 1" in result.notes[0]


def test_a_second_sample_has_another_shape():
    first, second = found(make(lambda ctx, x: x * 2)).samples
    assert shapes(first) != shapes(second)


def test_the_seed_decides_the_values():
    function = make(lambda ctx, x: x * 2)
    one, same, other = (found(function, seed).samples[0].args[0] for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_names_tell_numbers_from_tensors():
    def forward(ctx, x, dim, threshold, n_iter, use_bias):
        assert isinstance(dim, int)
        assert isinstance(threshold, float)
        assert type(n_iter) is int
        assert isinstance(use_bias, bool)
        return x.sum(dim) * threshold * n_iter

    result = found(make(forward, lambda ctx, g: (g.unsqueeze(-1).expand(3, 4), None, None, None, None)))
    assert result.samples[0].args[1:3] == (-1, 0.84)


def test_several_numbers_differ():
    function = make(lambda ctx, x, alpha, beta: x * alpha + beta, lambda ctx, g: (g, None, None))
    _, alpha, beta = found(function).samples[0].args
    assert alpha != beta


def test_a_scale_that_gets_a_gradient_is_a_tensor():
    function = make(lambda ctx, x, scale: x * scale, lambda ctx, g: (g, g))
    assert all(isinstance(a, Tensor) for a in found(function).samples[0].args)


def test_integer_targets_of_a_loss():
    def forward(ctx, scores, target):
        ctx.shape = scores.shape
        return scores.gather(1, target.unsqueeze(1)).squeeze(1)

    result = found(make(forward, lambda ctx, g: (g.unsqueeze(1).expand(ctx.shape), None)))
    scores, target = result.samples[0].args
    assert target.dtype == torch.int64
    assert target.shape == (3,)
    assert target.max() < scores.shape[1]


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (lambda ctx, a, b: a @ b, [(3, 4), (4, 5)]),
        (lambda ctx, x, weight, bias: torch.nn.functional.linear(x, weight, bias), [(3, 4), (5, 4), (5,)]),
        (lambda ctx, x, bias: x + torch.stack([bias] * len(x)), [(3, 4), (4,)]),
        (lambda ctx, x, w, b: torch.conv2d(x, w, b), [(2, 3, 6, 6), (4, 3, 3, 3), (4,)]),
        (lambda ctx, q, k, v: torch.softmax(q @ k.mT, -1) @ v, [(3, 4), (3, 4), (3, 4)]),
        (lambda ctx, x: torch.linalg.inv(x), [(4, 4)]),
        (lambda ctx, image: torch.nn.functional.avg_pool2d(image, 2).reshape(2, 3, -1), [(2, 3, 4, 4)]),
    ],
)
def test_shapes_that_belong_together(forward, expected):
    def backward(ctx, g):
        return tuple(torch.ones(shape, dtype=g.dtype) * g.sum() for shape in expected)

    assert shapes(found(make(forward, backward)).samples[0]) == expected


@pytest.mark.parametrize(
    ("forward", "holds"),
    [
        (lambda ctx, x: x.log(), lambda x: (x > 0).all()),
        (lambda ctx, x: torch.asin(x) + torch.log(x), lambda x: ((x > 0) & (x < 1)).all()),
    ],
)
def test_values_within_the_domain(forward, holds):
    assert holds(found(make(forward)).samples[0].args[0])


def test_annotations_are_followed_and_named_as_the_source():
    def forward(ctx, spam: Tensor, eggs: int, ham: Literal["low", "high"], nuts: Optional[Tensor], axis: "int"):  # noqa: UP045
        assert isinstance(eggs, int)
        assert ham in ("low", "high")
        return spam * eggs

    sample = found(make(forward, lambda ctx, g: (g, None, None, g, None))).samples[0]
    assert sample.provenance == "typed"
    assert sample.args[1:3] == (2, "low")
    assert isinstance(sample.args[3], Tensor)


def test_an_annotation_that_is_wrong_does_not_end_the_search():
    def forward(ctx, x, cut: float):
        return x * torch.sigmoid(cut)

    sample = found(make(forward, lambda ctx, g: (g, None))).samples[0]
    assert isinstance(sample.args[1], Tensor)
    assert sample.provenance == "synthesised"


def test_defaults_are_left_out():
    function = make(lambda ctx, x, k=7: x * k, lambda ctx, g: (g, None))
    assert len(found(function).samples[0].args) == 1


def test_defaults_are_passed_when_backward_needs_them():
    def backward(ctx, g):
        return g, (g if ctx.needs_input_grad[1] else None), None

    sample = found(make(lambda ctx, x, alpha=1.5, n=3: x * alpha, backward)).samples[0]
    assert sample.args[1] == 1.5


def test_an_optional_tensor_is_passed_in_the_second_sample():
    def backward(ctx, g):
        return (g, g.sum(0)) if ctx.bias else g

    def forward(ctx, x, bias=None):
        ctx.bias = bias is not None
        return x * 2 if bias is None else x * 2 + bias

    first, second = found(make(forward, backward)).samples
    assert len(first.args) == 1
    assert shapes(second) == [(3, 4), (4,)]


def test_every_parameter_has_a_default():
    assert shapes(found(make(lambda ctx, x=None: x * 2)).samples[0]) == [(3, 4)]


def test_any_number_of_tensors():
    function = make(lambda ctx, *xs: sum(xs), lambda ctx, g: g)
    assert shapes(found(function).samples[0]) == [(3, 4)]


def test_two_part_style():
    class Two(Function):
        @staticmethod
        def forward(x, k):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            _, ctx.k = inputs

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k, None

    assert found(Two).samples[0].args[1] == 2


def test_a_custom_op_is_typed_by_its_schema():
    @torch.library.custom_op("gradwright_tests::scaled", mutates_args=())
    def scaled(thing: Tensor, number: float, *, times: int) -> Tensor:
        return thing * number * times

    def backward(ctx, g):
        return g * ctx.number * ctx.times, None, None

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        _, ctx.number = inputs
        ctx.times = keyword_only_inputs["times"]

    scaled.register_autograd(backward, setup_context=setup_context)
    result = synthesise(as_subject(scaled))
    assert result.samples[0].provenance == "typed"
    assert result.samples[0].kwargs == {"times": 2}
    assert '"kwargs": {"times": 2}' in result.remedy


def test_an_in_place_function_is_run():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    assert found(make(forward, lambda ctx, g: g * 2))


def test_float32_when_float64_is_refused_or_ignored():
    def refuses(ctx, x):
        if x.dtype != torch.float32:
            raise RuntimeError("expected scalar type Float but found Double")
        return x * 2

    for forward, why in ((refuses, "does not run in float64"), (lambda ctx, x: (x > 0).float(), "returns float32")):
        result = found(make(forward))
        assert result.samples[0].args[0].dtype == torch.float32
        assert any(why in note for note in result.notes)
        assert "torch.float32" in result.remedy


def test_a_tensor_without_a_gradient_becomes_a_constant():
    def forward(ctx, x, levels):
        return levels[(x.unsqueeze(-1) - levels).abs().argmin(-1)]

    result = found(make(forward, lambda ctx, g: (g, None)))
    sample = result.samples[0]
    x, levels = sample.args
    assert x.requires_grad
    assert not levels.requires_grad
    assert "levels" in sample.name
    assert any("levels" in note and "constant" in note for note in result.notes)
    assert [i.name for i in Case(as_subject(make(forward)), sample).inputs] == ["x"]


def test_a_number_is_preferred_to_a_constant_tensor():
    function = make(lambda ctx, x, zorp: x * zorp, lambda ctx, g: (g, None))
    assert isinstance(found(function).samples[0].args[1], float)


def test_a_broken_backward_is_still_given_inputs():
    calls = []

    def forward(ctx, x, k):
        calls.append(1)
        return x * k

    result = found(make(forward, lambda ctx, g: g))  # one gradient too few
    assert result.samples[0].args[1] == 2
    assert "found at try 1" in result.notes[0]
    assert any("backward ran on no inputs" in note and "gradients" in note for note in result.notes)
    assert result.tries < 40


def test_inputs_on_which_backward_runs_are_preferred():
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.dim() != 3:
            raise IndexError("three dimensions, please")
        return g

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    assert len(shapes(found(make(forward, backward)).samples[0])[0]) == 3


def test_an_output_that_depends_on_the_input_is_preferred():
    def forward(ctx, x):
        return torch.where((x > 0).all(), x * 2, torch.zeros_like(x))

    assert (found(make(forward)).samples[0].args[0] > 0).all()


def test_a_forward_without_gradient_is_the_last_resort():
    def forward(ctx, x):
        out = x.round()
        ctx.mark_non_differentiable(out)
        return out

    result = synthesise(as_subject(make(forward)))
    assert result.samples
    assert any("requires grad" in note for note in result.notes)


# ---------------------------------------------------------------- nothing found


def test_a_forward_that_always_raises():
    def forward(ctx, x, k):
        raise ValueError("not today")

    result = synthesise(as_subject(make(forward, name="Never")))
    assert result.samples == ()
    assert result.tries <= MAX_TRIES
    assert "Never: forward raised ValueError: not today on each of the" in result.reason
    assert result.remedy == 'gradwright_samples = {"Never": (torch.randn(3, 4, dtype=torch.float64), 2)}  # x, k'


def test_a_forward_that_returns_no_tensor():
    result = synthesise(as_subject(make(lambda ctx, x: None)))
    assert "returned no finite floating-point tensor" in result.reason


def test_an_abstract_base_is_told_as_one():
    class Base(Function):
        @classmethod
        def forward(cls, ctx, x):
            return cls.rule(x)

    class Child(Base):
        @classmethod
        def rule(cls, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    assert "has no attribute 'rule'" in synthesise(as_subject(Base)).reason
    assert "only a base of Child" in synthesise(as_subject(Base)).reason
    assert found(Child)


def test_no_forward_at_all():
    class Empty(Function):
        pass

    assert "defines no forward" in synthesise(as_subject(Empty)).reason


def test_a_function_argument_is_not_guessed():
    result = synthesise(as_subject(make(lambda ctx, x, activation_fn: activation_fn(x), name="Apply")))
    assert "activation_fn" in result.reason
    assert result.tries == 0
    assert "lambda *args: args[0]" in result.remedy


@pytest.mark.parametrize(
    "forward",
    [
        lambda ctx, x: x.log(),
        lambda ctx, x, target: x.gather(1, target.unsqueeze(1)),
        lambda ctx, x, weight, bias: torch.nn.functional.linear(x, weight, bias),
        lambda ctx, x, mask: x * mask + (1 if mask.dtype == torch.bool else mask.fail()),
        lambda ctx, x, slope, levels: x * slope + levels,
    ],
)
def test_the_remedy_is_python_that_declares_inputs_on_which_forward_runs(forward):
    result = synthesise(as_subject(make(forward, name="F")))
    scope = {"torch": torch}
    exec(result.remedy, scope)
    args = scope["gradwright_samples"]["F"]
    assert [getattr(a, "dtype", type(a)) for a in args] == [
        getattr(a, "dtype", type(a)) for a in result.samples[0].args
    ]
    make(forward).apply(*args)


def test_no_parameter_can_be_a_tensor():
    text = ", ".join(f"n{i}: int" for i in range(12))
    scope = {}
    exec(f"def forward(ctx, {text}): return 0", scope)
    start = time.monotonic()
    assert "returned no finite" not in (reason := synthesise(as_subject(make(scope["forward"]))).reason)
    assert "n" in reason
    assert time.monotonic() - start < 10


def test_a_great_many_parameters():
    names = ", ".join(f"p{i}" for i in range(60))
    scope = {}
    exec(f"def forward(ctx, {names}): return p0 * 2", scope)
    start = time.monotonic()
    assert len(found(make(scope["forward"], lambda ctx, g: (g, *[None] * 59))).samples[0].args) == 60
    assert time.monotonic() - start < 10


def test_a_default_that_cannot_be_compared():
    default = torch.ones(4)
    function = make(lambda ctx, x, scale=default: x.fail(), lambda ctx, g: (g, None))
    assert "AttributeError" in synthesise(as_subject(function)).reason


# ---------------------------------------------------------------- isolation


def test_an_attempt_leaves_no_trace(capsys):
    def forward(ctx, x):
        print("noise")
        print("noise", file=sys.stderr)
        warnings.warn("noise", stacklevel=1)
        torch.randn(3)
        random.random()
        x.mul_(2)
        return x.clone()

    torch.manual_seed(1)
    random.seed(1)
    before = (torch.get_rng_state(), random.getstate())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = synthesise(as_subject(make(forward)))
    assert result.samples
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert capsys.readouterr() == ("", "")


def test_a_forward_that_exits_is_only_a_failed_try():
    def forward(ctx, x):
        sys.exit(3)

    assert "SystemExit" in synthesise(as_subject(make(forward))).reason


def test_a_forward_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(synthesis_module, "SECONDS_A_TRY", 0.05)
    monkeypatch.setattr(synthesis_module, "MAX_SECONDS", 0.3)

    def forward(ctx, x):
        while True:
            pass

    start = time.monotonic()
    result = synthesise(as_subject(make(forward)))
    assert time.monotonic() - start < 3
    assert "took longer than" in result.reason


def test_the_source_is_needed_by_nothing():
    """Functions made by ``exec`` have no source, and are found inputs all the same."""
    scope = {}
    exec(
        textwrap.dedent("""
        import torch
        class E(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, g): return g * 2
        """),
        scope,
    )
    assert found(scope["E"])


def test_a_shape_on_which_backward_raises_is_not_passed_over() -> None:
    class SumWithoutExpand(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g

    found = synthesise(as_subject(SumWithoutExpand), seed=0)
    assert sorted(tuple(sample.args[0].shape) for sample in found.samples) == [(), (3, 4)]


def test_what_a_declaration_lacks_is_said_soon_and_without_a_sample():
    @gw.custom_gradient
    def f(x):
        return x.sin()

    result = synthesise(as_subject(f))
    assert (result.tries, result.remedy) == (3, "")
    assert result.reason.startswith("f: it has no gradient rule yet; expected one; write `@f.vjp`")

    @f.vjp
    def f_vjp(g, residuals):
        return g * residuals

    result = synthesise(as_subject(f))
    assert (result.tries, result.remedy) == (3, "")
    assert "asks for residuals, but nothing keeps any" in result.reason


def test_a_refusal_of_gradwright_inside_of_forward_is_no_matter_of_the_inputs():
    @gw.custom_gradient
    def inner(x):
        return x.sin()

    @gw.custom_gradient
    def outer(x):
        return inner(x) * 2

    @outer.vjp
    def outer_vjp(g, x):
        return g * 2 * x.cos()

    result = synthesise(as_subject(outer))
    assert result.reason.startswith("outer: its forward raised: inner: it has no gradient rule yet")
    assert "declare some" not in result.reason
    assert result.remedy == ""


def test_a_refusal_of_some_inputs_does_not_end_the_search():
    @gw.custom_gradient
    def f(x):
        return (x.exp(), lambda g: g) if x.dim() == 2 else x.exp()

    @f.vjp
    def f_vjp(g, out):
        return g * out

    assert all(sample.args[0].dim() != 2 for sample in found(f).samples)
