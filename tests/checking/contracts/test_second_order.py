"""second-order: silently wrong or missing second derivatives fail, loud refusals are unsupported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import gradwright as gw
from gradwright.checking.report import ContractResult
from tests.subjects import ComplexSquare, Exp, Linear, NumpySquare, RoundSTE, Scale, SinCos, variant, x

F = torch.nn.functional


def result(target: Any, *inputs: Any) -> ContractResult:
    return gw.check(target, *inputs, only="second-order", seed=0)["second-order"]


class XExp(Function):
    """``x exp(x)``; the first derivative is right, the second depends on what was saved."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t * t.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return g * t.exp() * (1 + t)


def save_intermediate(ctx: Any, t: Tensor) -> Tensor:
    e = t.exp()
    ctx.save_for_backward(t, e)
    return t * e


def from_intermediate(ctx: Any, g: Tensor) -> Tensor:
    t, e = ctx.saved_tensors
    return g * e * (1 + t)


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (Exp, (x(3),)),
        (XExp, (x(3, 4),)),
        (SinCos, (x(3),)),
        (Scale, (x(3), 2)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (ComplexSquare, (torch.randn(3, dtype=torch.complex128),)),
        (RoundSTE, (x(3),)),
        (torch.relu, (torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64),)),
        (torch.round, (x(4),)),
        (torch.sin, (torch.randn(4),)),
        (torch.exp, (x(3000),)),
        (lambda t: t * 1e200, (x(3),)),
    ],
)
def test_right_ones_pass(target: Any, inputs: tuple[Any, ...]) -> None:
    found = result(target, *inputs)
    assert found.verdict == "pass", found.message


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def recomputed(f: Any) -> type[Function]:
    """Return a Function of one's own whose backward differentiates ``f`` anew: right, with PyTorch's own rounding."""

    class Recomputed(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return f(t)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (t,) = ctx.saved_tensors
            with torch.enable_grad():
                t = t.view_as(t) if t.requires_grad else t.detach().requires_grad_()
                return torch.autograd.grad(f(t), t, g, create_graph=True)[0]

    return Recomputed


SATURATED: dict[str, tuple[Any, Tensor]] = {
    "logsumexp": (lambda a: torch.logsumexp(a, 0), t(28, 0, 3.5)),
    "logsumexp of large numbers": (lambda a: torch.logsumexp(a, 0), t(1000, 1030, 1003.5)),
    "cross entropy": (lambda a: F.cross_entropy(a, torch.tensor([0, 2])), torch.stack([t(28, 0, 3.5), t(0.1, 30, 1)])),
    "cross entropy of large numbers": (
        lambda a: F.cross_entropy(a, torch.tensor([1, 1])),
        torch.stack([t(1000, 1030, 1003.5), t(0, 800, 1)]),
    ),
    "cross entropy that underflows": (lambda a: F.cross_entropy(a, torch.tensor([0])), t(200, 0, 3.5).unsqueeze(0)),
    "softmax": (lambda a: torch.softmax(a, 0), t(28, 0, 3.5)),
    "softmax of large numbers": (lambda a: torch.softmax(a, 0), t(1000, 1030, 1003.5)),
    "log_softmax": (lambda a: torch.log_softmax(a, 0), t(1000, 1030, 1003.5)),
    "sigmoid": (torch.sigmoid, t(40, -40, 30)),
    "tanh": (torch.tanh, t(20, -18, 0.1)),
    "gelu": (F.gelu, t(-8)),
    "softplus": (F.softplus, t(40, -40, 19.9)),
    "logsigmoid": (F.logsigmoid, t(40, -40, 30)),
    "erf": (torch.erf, t(6, 5.8, -6)),
    "normalize": (lambda a: F.normalize(a, dim=0), t(1e8, 1, 1e-8)),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SATURATED)
def test_saturated_functions_are_not_accused(name: str, seed: int) -> None:
    f, values = SATURATED[name]
    for target in (f, recomputed(f)):
        report = gw.check(target, values, only=("second-order", "gradient-penalty"), seed=seed)
        assert report.ok, str(report)


def test_a_saturated_function_with_a_wrong_second_derivative_fails() -> None:
    # The term from the sum is a constant to double backward: off by as much as the second derivative itself.
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return g * torch.exp(a) / torch.exp(a).sum().detach()

    wrong = variant(recomputed(lambda a: torch.logsumexp(a, 0)), "Wrong", backward=backward)
    assert result(wrong, t(8, 0, 3.5)).verdict == "fail"


VALIDATING: dict[str, tuple[Any, Tensor]] = {
    "binary cross entropy": (lambda p: F.binary_cross_entropy(p, t(1, 0, 1)), t(0.99, 0.02, 0.5)),
    "distribution": (lambda p: torch.distributions.Bernoulli(probs=p).log_prob(t(1, 0, 1)), t(0.99, 0.02, 0.5)),
    "support": (lambda p: torch.distributions.Beta(t(2.0), t(3.0)).log_prob(p), t(0.99)),
}


@pytest.mark.parametrize("name", VALIDATING)
def test_a_step_on_which_forward_raises_is_a_point_without_a_value(name: str) -> None:
    f, values = VALIDATING[name]
    for target in (f, recomputed(f)):
        found = result(target, values)
        assert found.verdict == "pass", found.message


def test_a_step_out_of_the_declared_domain_is_a_point_without_a_value() -> None:
    left = []

    def f(p: Tensor) -> Tensor:
        left.append(bool((p.detach() > 1).any()))
        return (1.5 - p).log()

    report = gw.check(f, t(0.99), domain=(0, 1), only="second-order")
    assert report["second-order"].verdict == "pass"
    assert not any(left)


def test_a_wrong_second_derivative_of_pytorchs_own_is_not_yours() -> None:
    # binary_cross_entropy divides by p (1 - p) + 1e-12 in its double backward.
    found = result(lambda p: F.binary_cross_entropy(p, t(1, 0, 1)), t(0.99, 1e-12, 0.5))
    assert found.verdict == "unresolved"
    assert "PyTorch's own" in found.message


@pytest.mark.parametrize("n", [3, 2000])
def test_saved_intermediate_is_silently_wrong(n: int) -> None:
    wrong = variant(XExp, "Saved", forward=save_intermediate, backward=from_intermediate)
    found = result(wrong, x(n))
    assert found.verdict == "fail"
    assert "silently wrong" in found.message
    assert "recompute it in backward" in (found.findings[0].hint or "")
    assert found.findings[0].where is not None
    assert found.findings[0].where.input is not None


def test_detached_saved_tensor_is_silently_missing() -> None:
    wrong = variant(XExp, "Detached", backward=lambda ctx, g: XExp.backward(Fake(ctx.saved_tensors[0].detach()), g))
    found = result(wrong, x(3))
    assert found.verdict == "fail"
    assert "silently missing" in found.message


class Fake:
    def __init__(self, tensor: Tensor) -> None:
        self.saved_tensors = (tensor,)


def test_cut_by_numpy_is_silently_missing_in_both() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        return torch.from_numpy(g.detach().numpy() * 2 * t.detach().numpy())

    found = result(variant(NumpySquare, "Cut", backward=backward), x(3))
    assert found.verdict == "fail"
    assert len(found.findings) == 2
    assert "no path from the gradient to grad_output" in found.findings[1].message


def test_lost_cotangent_alone() -> None:
    found = result(variant(XExp, "Lost", backward=lambda ctx, g: XExp.backward(ctx, g.detach())), x(3))
    assert [f.where.input for f in found.findings if f.where] == [None]


def test_loud_refusals_are_unsupported() -> None:
    found = result(NumpySquare, x(3))
    assert found.verdict == "unsupported"
    assert "once_differentiable" in found.message

    def raising(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(g.numpy() * 2)

    assert result(variant(NumpySquare, "Raises", backward=raising), x(3)).verdict == "unsupported"


def test_once_differentiable_is_recognised_although_grad_walks_past_its_node() -> None:
    wrapped = variant(XExp, "Once", backward=once_differentiable(XExp.backward))
    assert result(wrapped, x(3)).verdict == "unsupported"


def test_nan_second_derivative_is_named() -> None:
    class RootSquare(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t * t

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            return g * 2 * t.sign() * (t * t).sqrt()

    found = result(RootSquare, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert found.verdict in ("fail", "unresolved")
    assert result(RootSquare, x(3)).verdict == "pass"


def test_infinite_second_derivative_is_not_accused() -> None:
    assert result(lambda t: t**1.5, torch.tensor([0.0, 1.0], dtype=torch.float64)).verdict != "fail"


def test_once_more_wrong_factor() -> None:
    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            return CubeGrad.apply(g, t)

    class CubeGrad(Function):
        @staticmethod
        def forward(ctx: Any, g: Tensor, t: Tensor) -> Tensor:
            ctx.save_for_backward(g, t)
            return 3 * g * t * t

        @staticmethod
        def backward(ctx: Any, gg: Tensor) -> Any:
            g, t = ctx.saved_tensors
            return gg * 3 * t * t, -gg * 6 * g * t

    finding = result(Cube, x(3)).findings[0]
    assert finding.analytic is not None
    assert finding.numeric is not None
    assert finding.analytic == pytest.approx(-finding.numeric, rel=1e-6)


def test_no_second_derivative_where_the_gradient_is_infinite() -> None:
    class CubeRoot(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t.sign() * t.abs() ** (1 / 3)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            return g * t.abs() ** (-2 / 3) / 3

    found = result(CubeRoot, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert found.verdict == "unresolved", found.message


def test_digits_that_pytorch_itself_lacks_are_not_accused() -> None:
    class LogGamma(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return torch.lgamma(t)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * torch.digamma(ctx.saved_tensors[0])  # the derivative of this is right to 3e-10

    inputs = torch.tensor([0.5, 2.0, 10.0], dtype=torch.float64)
    for seed in range(3):
        found = gw.check(LogGamma, inputs, only="second-order", seed=seed)["second-order"]
        assert found.verdict == "pass", found.message


class SymmetricSolve(Function):
    """The solution for a symmetric matrix of which forward reads one triangle; the gradient is symmetric."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.cholesky_solve(b, torch.linalg.cholesky(a))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        out, back = SymmetricSolve.apply(a, b), SymmetricSolve.apply(a, g)
        return -(back @ out.t() + out @ back.t()) / 2, back


def forget_the_solution(ctx: Any, g: Tensor) -> Any:
    a, b = ctx.saved_tensors
    out, back = SymmetricSolve.apply(a, b).detach(), SymmetricSolve.apply(a, g)
    return -(back @ out.t() + out @ back.t()) / 2, back


@pytest.mark.parametrize("contract", ["second-order", "gradient-penalty"])
def test_functions_of_symmetric_matrices_are_judged_along_symmetric_directions(contract: str) -> None:
    half = x(3, 3)
    a, b = half @ half.t() + 3 * torch.eye(3, dtype=torch.float64), x(3, 2, seed=1)
    a = (a + a.t()) / 2
    only = (contract, "second-order")
    found = gw.check(SymmetricSolve, a, b, only=only, seed=0)[contract]
    assert found.verdict == "pass", found.message
    broken = variant(SymmetricSolve, "Forgets", backward=forget_the_solution)
    assert gw.check(broken, a, b, only=contract, seed=0)[contract].verdict == "fail"
