"""matches-differences: wrong gradients are found and explained, awkward but right ones are not accused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import (
    ClassMethods,
    ComplexSquare,
    Exp,
    Gather,
    InPlaceDouble,
    Linear,
    NewStyleScale,
    NumpySquare,
    RoundSTE,
    Scale,
    SinCos,
    variant,
    x,
)

F = torch.nn.functional


def result(target: Any, *inputs: Any, **options: Any) -> ContractResult:
    name = "matches-differences"
    return gw.check(target, *inputs, only=name, seed=0, **options)[name]


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


RIGHT: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "old style": (Exp, (x(3, 4),)),
    "two outputs": (SinCos, (x(3),)),
    "new style": (NewStyleScale, (x(3), 3)),
    "python number": (Scale, (x(3), 3)),
    "class methods": (ClassMethods, (x(3, 4),)),
    "NumPy": (NumpySquare, (x(3),)),
    "several inputs": (Linear, (x(2, 3), x(4, 3), x(4))),
    "integer second input": (Gather, (x(5), torch.tensor([0, 2, 2]))),
    "declared in place": (InPlaceDouble, (x(3),)),
    "complex": (ComplexSquare, (torch.randn(3, dtype=torch.complex128),)),
    "complex to real": (torch.abs, (torch.randn(3, dtype=torch.complex128),)),
    "real to complex": (torch.fft.rfft, (x(6),)),
    "relu at 0": (torch.relu, (t(0.0, 1.0, -1.0),)),
    "relu near 0": (torch.relu, (t(3e-7, 1.0),)),
    "abs at 0": (torch.abs, (t(0.0, 1.0),)),
    "clamp at its bounds": (lambda a: a.clamp(0, 1), (t(0.0, 1.0, 0.5, 2.0),)),
    "hardswish at its bounds": (F.hardswish, (t(-3.0, 3.0, 0.0),)),
    "gelu that underflowed": (F.gelu, (t(-11.0, -26.0),)),
    "tied max": (lambda a: a.max(), (t(1.0, 1.0, 0.0),)),
    "tied amax": (lambda a: a.amax(), (t(1.0, 1.0, 0.0),)),
    "norm at 0": (lambda a: a.norm(), (t(0.0, 0.0),)),
    "close values sorted": (lambda a: a.sort()[0], (t(1.0, 1 + 5e-7, 3.0),)),
    "sqrt at 1e-7": (torch.sqrt, (t(1e-7, 1.0),)),
    "sqrt at 0": (torch.sqrt, (t(0.0, 1.0),)),
    "log at 1e-7": (torch.log, (t(1e-7, 1.0),)),
    "reciprocal at 1e-5": (torch.reciprocal, (t(1e-5, 1.0),)),
    "2x at 1e8": (lambda a: 2 * a, (t(1e8, 1.0),)),
    "square at 1e8 and 1e-8": (lambda a: a * a, (t(1e8, 1.0, 1e-8),)),
    "offset of 1e8": (lambda a: a.sin() + 1e8, (x(3),)),
    "fast oscillation": (lambda a: torch.sin(1e5 * a), (x(3),)),
    "erfinv near its end": (torch.erfinv, (t(1 - 1e-7, 0.2),)),
    "ill-conditioned inverse": (torch.linalg.inv, (torch.diag(t(1.0, 1e-8)) + 1e-9 * x(2, 2),)),
    "eigenvalues": (lambda a: torch.linalg.eigvalsh(a + a.t()), (x(4, 4),)),
    "float32": (torch.sin, (torch.randn(4),)),
    "float16": (torch.sin, (torch.randn(4).half(),)),
    "bfloat16": (torch.tanh, (torch.randn(4).bfloat16(),)),
    "float32 inside": (lambda a: a.float().sin().double(), (x(4),)),
    "transposed and sliced": (torch.sin, (x(4, 6).t()[1:, ::2],)),
    "expanded": (torch.sin, (x(1, 3).expand(4, 3),)),
    "empty": (torch.sin, (x(0, 3),)),
    "0-dim": (torch.sin, (t(0.3)[0],)),
    "tiny scale": (lambda a: a * 1e-30, (x(3),)),
    "huge scale": (lambda a: a * 1e200, (x(3),)),
    "underflow": (lambda a: (a * 1e-160) ** 2, (x(3),)),
    "product with zeros": (lambda a: a.cumprod(0), (t(1.0, 0.0, 2.0, 0.0, 3.0),)),
    "dropout": (lambda a: F.dropout(a, 0.5), (x(8),)),
    "batch norm": (torch.nn.BatchNorm1d(3).double(), (x(5, 3),)),
    "list of tensors": (lambda parts: sum(parts), ([x(2), x(2)],)),
    "max pool": (lambda a: F.max_pool2d(a, 2), (x(1, 1, 4, 4),)),
    "large": (torch.exp, (x(5000),)),
    "large relu": (torch.relu, (x(5000),)),
    "large float32": (torch.tanh, (torch.randn(3000),)),
    "derivative zero almost everywhere": (torch.round, (x(5),)),
    "stairs finer than the steps": (lambda a: (a * 1000).round() / 1000, (x(5),)),
    "relu at many zeros": (torch.relu, (torch.cat([torch.zeros(150, dtype=torch.float64), x(150)]),)),
    "relu6 at both bounds": (F.relu6, (t(0.0, 6.0),)),
    "clamp at bounds far apart": (lambda a: a.clamp(0, 100), (t(0.0, 100.0),)),
    "two zeros under a root": (torch.sqrt, (torch.cat([torch.zeros(2, dtype=torch.float64), x(198).abs()]),)),
    "three-way tie sorted": (lambda a: a.sort()[0], (t(1.0, 1.0, 0.5, 1.0),)),
    "three-way tie, two largest": (lambda a: a.topk(2)[0], (t(1.0, 1.0, 1.0, 0.0),)),
    "Cholesky factor": (torch.linalg.cholesky, (torch.diag(t(1.0, 2.0, 3.0)) + 0.1,)),
}


UNDECIDED = (
    "close values sorted",
    "sqrt at 0",
    "underflow",
    "derivative zero almost everywhere",
    "stairs finer than the steps",
)
"""Those of them where most of what is not zero cannot be told."""


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_are_not_accused(name: str) -> None:
    target, inputs = RIGHT[name]
    found = result(target, *inputs)
    assert found.verdict == ("unresolved" if name in UNDECIDED else "pass"), found.message
    assert not found.findings


def test_zeros_beside_a_diagonal_do_not_make_a_pass() -> None:
    class Quantise(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return (a.clamp(-1, 1) * 127).round() / 127

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g

    values = torch.linspace(-0.98, 0.97, 12, dtype=torch.float64)
    found = result(Quantise, values)
    assert found.verdict != "pass"
    assert "surrogate=" in found.message
    report = gw.check(Quantise, values, only=("matches-differences", "shapes"))
    assert report["shapes"].verdict in ("pass", "skipped"), report["shapes"].message


def test_hopeless_steps_are_unresolved_not_wrong() -> None:
    assert result(torch.sin, t(1e10)).verdict == "unresolved"


def test_kinks_are_counted_in_the_message() -> None:
    assert "1 at a kink" in result(torch.relu, t(0.0, 1.0)).message


@pytest.mark.parametrize("n", [4, 5000])
@pytest.mark.parametrize(
    "change",
    [lambda grad: -grad, lambda grad: 2 * grad, lambda grad: grad * (1 + 1e-6), lambda grad: 0 * grad],
    ids=["sign", "factor", "small relative error", "zeros"],
)
def test_wrong_ones_are_found_dense_and_projected(change: Any, n: int) -> None:
    wrong = variant(Exp, "Wrong", backward=lambda ctx, g: change(g * ctx.saved_tensors[0]))
    found = result(wrong, x(n))
    assert found.verdict == "fail"
    finding = found.findings[0]
    assert finding.where is not None
    assert finding.where.input == "x"
    assert finding.analytic is not None
    assert finding.numeric is not None
    assert finding.error_bar is not None
    assert abs(finding.analytic - finding.numeric) > finding.error_bar


def test_small_scale_hides_nothing() -> None:
    class Tiny(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a * 1e-6

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * 0

    assert result(Tiny, x(3)).verdict == "fail"


def test_conjugate_missing() -> None:
    wrong = variant(ComplexSquare, "W", backward=lambda ctx, g: g * 2 * ctx.saved_tensors[0])
    assert result(wrong, torch.randn(3, dtype=torch.complex128)).verdict == "fail"


def test_wrong_subgradient_at_a_kink() -> None:
    class Relu(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            ctx.save_for_backward(a)
            return a.relu()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (a,) = ctx.saved_tensors
            return g * torch.where(a == 0, 2.0, (a > 0).to(a.dtype))

    found = result(Relu, t(0.0, 1.0))
    assert found.verdict == "fail"
    assert "every value from" in found.findings[0].message


def test_each_wrong_input_has_a_finding() -> None:
    wrong = variant(Linear, "W", backward=lambda ctx, g: (-g @ ctx.saved_tensors[1], None, g.sum(0)))
    found = result(wrong, x(2, 3), x(4, 3), x(4))
    assert [f.where.input for f in found.findings if f.where] == ["x", "w"]


def test_gradient_lost_by_detaching_the_output() -> None:
    found = result(lambda a: a.detach() * 2, x(3))
    assert found.verdict == "fail"
    assert "no output requires grad, although the output moves with `a`" in found.message
    assert result(lambda a: a.detach().round(), t(0.2, 0.1)).verdict == "pass"


def test_backward_that_raises_is_reported_with_its_place() -> None:
    def raising(ctx: Any, g: Tensor) -> Any:
        return g * ctx.not_there

    found = result(variant(Exp, "Raising", backward=raising), x(3))
    assert found.verdict == "fail"
    assert "AttributeError" in found.message
    assert "of test_matches_differences.py" in found.message


def test_reentrant_checkpoint_is_unsupported() -> None:
    def f(a: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(torch.sin, a, use_reentrant=True)

    assert result(f, x(3)).verdict == "unsupported"


def test_forward_only_is_unsupported() -> None:
    class ForwardOnly(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a * 2

    assert result(ForwardOnly, x(3)).verdict == "unsupported"


def test_random_forward_is_not_judged() -> None:
    state = {"n": 0}

    def counting(a: Tensor) -> Tensor:
        state["n"] += 1
        return a * state["n"]

    found = result(counting, x(3))
    assert found.verdict == "unresolved"
    assert "different outputs" in found.message


def test_low_precision_is_judged_on_its_twin() -> None:
    assert "float64 twin" in result(torch.sin, torch.randn(4)).message
    wrong = variant(Exp, "Wrong", backward=lambda ctx, g: g * ctx.saved_tensors[0] * 1.00001)
    assert result(wrong, torch.randn(4)).verdict == "fail"


def test_undeclared_straight_through_is_called_by_its_name() -> None:
    found = result(RoundSTE, 3 * x(5))
    assert found.verdict == "suspect"
    assert "straight-through" in found.message
    assert "surrogate=lambda x: x" in (found.findings[0].hint or "")


def test_sensitivity_and_evidence_are_given() -> None:
    found = result(Exp, x(5))
    assert found.sensitivity is not None
    assert found.sensitivity < 1e-8
    assert len(found.evidence[0].analytic) == 5, "only the entries that are not zero"


MATRIX = x(300, 300, seed=5) / 300**0.5


class Mixed(Function):
    """A dense layer whose Jacobian is too large to be compared entry by entry."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = torch.tanh(MATRIX @ t)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return MATRIX.T @ (g * (1 - ctx.saved_tensors[0] ** 2))


@pytest.mark.parametrize("seed", range(3))
def test_sensitivity_of_projections_is_that_of_one_element(seed: int) -> None:
    values = torch.where(x(300, seed=seed) > 0, 1.0, -1.0).double()
    found = gw.check(Mixed, values, only="matches-differences", seed=seed)["matches-differences"]
    assert found.sensitivity is not None
    assert f"wrong by {found.sensitivity:.1g} of a typical one would have shown" in found.message

    def verdict(error: float) -> str:
        def backward(ctx: Any, g: Tensor) -> Tensor:
            gradient = Mixed.backward(ctx, g)
            gradient[17] += error * gradient.abs().mean()
            return gradient

        wrong = variant(Mixed, "Wrong", backward=backward)
        return gw.check(wrong, values, only="matches-differences", seed=seed)["matches-differences"].verdict

    assert verdict(5 * found.sensitivity) == "fail"
    assert verdict(found.sensitivity / 50) == "pass"


def test_projections_say_when_a_single_element_would_be_missed() -> None:
    found = result(lambda a: torch.sin(a).sum() + 4e13, x(30_000))  # rounded to 1/128, where an element adds about 1
    assert found.verdict == "pass"
    assert found.sensitivity is not None
    assert found.sensitivity >= 1
    assert "would not have shown a single wrong element" in found.message


@pytest.mark.parametrize("seed", range(4))
def test_every_seed_gives_the_same_verdict(seed: int) -> None:
    wrong = variant(Exp, "Wrong", backward=lambda ctx, g: g * ctx.saved_tensors[0] * (1 + 1e-7))
    for target, verdict in ((Exp, "pass"), (wrong, "fail")):
        for n in (5, 1000):
            report = gw.check(target, x(n, seed=seed), only="matches-differences", seed=seed)
            assert report["matches-differences"].verdict == verdict


def test_a_random_forward_is_judged_on_one_draw() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return g * mask * 2

    found = result(variant(Dropped, "Twice", backward=backward), x(8))
    assert found.verdict == "fail"
    assert "of one draw" in (found.findings[0].hint or "")
    assert result(Dropped, x(8)).verdict == "pass"


def test_a_derivative_of_an_expectation_by_pytorch_is_not_judged() -> None:
    found = result(lambda a: torch.distributions.Gamma(a, torch.ones_like(a)).rsample(), x(3).abs() + 1)
    assert found.verdict == "unresolved"
    assert "single draw" in found.message


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        mask = (torch.rand_like(t) < 0.5).to(t.dtype)
        ctx.save_for_backward(mask)
        return t * mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * mask


def test_an_infinite_slope_that_is_approached_slowly() -> None:
    class XLogX(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            ctx.save_for_backward(a)
            return torch.xlogy(a, a)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (a,) = ctx.saved_tensors
            return g * (a.log() + 1)

    found = result(XLogX, t(0.0, 1.0))  # NaN for the other element is zero times infinity
    assert found.verdict in ("pass", "unresolved"), found.message


class GreedyMax(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a.amax(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (a,) = ctx.saved_tensors
        return g.unsqueeze(-1) * (a == a.amax(-1, keepdim=True))


def test_the_whole_gradient_for_each_of_two_tied_elements_is_called_so() -> None:
    (finding,) = result(GreedyMax, t(1.0, 1.0)).findings
    assert "each value alone lies between the one-sided slopes, but not all of them together" in finding.message
    assert "would be right" not in finding.message
    assert "at a tie give the gradient to one of the equal elements" in (finding.hint or "")


def test_tensors_in_a_list_that_was_passed_to_apply() -> None:
    class Total(Function):
        @staticmethod
        def forward(ctx: Any, parts: list[Tensor]) -> Tensor:
            return parts[0] + 2 * parts[1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return None

    (finding,) = result(lambda a, b: Total.apply([a, b]), x(3), x(3, seed=1)).findings
    assert "in a list or dict they are not tracked" in (finding.hint or "")


@pytest.mark.parametrize("own", [False, True])
def test_code_that_uses_a_declared_surrogate_is_not_accused(own: bool) -> None:
    """In a function of one's own, or in an estimator of the catalogue."""

    @gw.custom_gradient(surrogate=lambda t: t.clone())
    def rounded(t: Tensor) -> Tensor:
        return torch.round(t)

    rounded.vjp(lambda g: g)
    estimator = rounded if own else lambda t: gw.ste.fake_quantize(t, 0.25, low=-8, high=7)
    layer = torch.nn.Linear(3, 2).double()
    report = gw.check(lambda t: layer(estimator(t)).tanh(), torch.randn(4, 3).double(), only=("matches-differences",))
    assert report.results[0].verdict == "skipped"
    assert "takes part, which declares that" in report.results[0].message


@pytest.mark.parametrize(("recorded", "verdict"), [(True, "unresolved"), (False, "fail")])
def test_what_ran_in_the_program_and_raises_here_is_not_accused(recorded: bool, verdict: str) -> None:
    class Needs(Function):
        there = False

        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            if not Needs.there:
                raise FileNotFoundError("table.bin")
            return g

    cotangents = (torch.ones(3, dtype=torch.float64),) if recorded else None
    sample = Sample((x(3),), provenance="recorded", cotangents=cotangents)
    found = check_subject(as_subject(Needs), [sample], only=("matches-differences",))["matches-differences"]
    assert found.verdict == verdict
    assert "FileNotFoundError: table.bin" in found.message


def test_a_backward_that_says_it_is_not_implemented_is_none() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise NotImplementedError("for inference only")

    assert result(variant(Exp, "Inference", backward=backward), x(3)).verdict == "unsupported"
