"""Derivatives of PyTorch that really are wrong, with their numbers: finding them is no false accusation.

Each was examined by hand against mpmath, the plain formula, or PyTorch's own ``gradcheck`` and ``gradgradcheck``. A
test checks that the fault is still there; an entry that a release of PyTorch mends is to be removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests.controls.entries import t, x


@dataclass(frozen=True)
class Fault:
    """One fault: what is wrong, which operators of PyTorch's list show it and in which contracts, and a proof."""

    what: str
    operators: tuple[str, ...]
    contracts: tuple[str, ...]
    size: Callable[[], float]
    """How large the error is, relative; NaN where the derivative is NaN or missing."""
    at_least: float
    """Below this the fault is mended; NaN stays NaN."""

    def still_there(self) -> bool:
        """Tell whether the fault is still there."""
        size = self.size()
        return math.isnan(size) or size >= self.at_least


def gradient(function: Callable[..., Tensor], *inputs: Tensor, create_graph: bool = False) -> Tensor:
    leaf = inputs[0].clone().requires_grad_()
    (grad,) = torch.autograd.grad(function(leaf, *inputs[1:]).sum(), leaf, create_graph=create_graph)
    return grad


def second(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    leaf = point.clone().requires_grad_()
    (grad,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
    return torch.autograd.grad(grad.sum(), leaf)[0]


def hardsigmoid() -> float:
    return abs(float(gradient(torch.nn.functional.hardsigmoid, t(0.5))) * 6 - 1)


def sinc() -> float:
    return abs(float(second(torch.sinc, t(0.0))) / (-(math.pi**2) / 3) - 1)


def trigamma() -> float:
    return abs(float(torch.polygamma(1, t(1.0))) / (math.pi**2 / 6) - 1)


def as_strided_scatter() -> float:
    source = x(2, 2, seed=1)
    leaf = x(3, 3).requires_grad_()
    fine = gradcheck(lambda a: torch.as_strided_scatter(a, source, (2, 2), (1, 2), 1), (leaf,), raise_exception=False)
    return 0.0 if fine else 1.0


def weight_norm() -> float:
    leaves = x(2, 3).requires_grad_(), (1 + x(2, 1, seed=1).abs()).requires_grad_()
    fine = gradgradcheck(lambda v, g: torch._weight_norm(v, g, 0), leaves, raise_exception=False)
    return 0.0 if fine else 1.0


def determinant() -> float:
    """The plain gradient is zeros; with create_graph=True it is the adjugate, as it should be."""
    ones = torch.ones(2, 2, dtype=torch.float64)
    plain = gradient(torch.linalg.det, ones)
    right = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    return float((plain - right).abs().max())


def negated_determinant() -> float:
    """The gradient at a matrix with the negative bit, in memory with gaps, is the transpose of the right one."""
    plain = x(3, 3)
    negated = torch.complex(torch.zeros_like(plain), -plain).conj().imag
    leaf = negated.detach().requires_grad_()
    assert leaf.is_neg()
    assert torch.equal(leaf, plain)
    (grad,) = torch.autograd.grad(torch.linalg.det(leaf), leaf)
    return float((grad - gradient(torch.linalg.det, plain)).abs().max())


def instance_norm() -> float:
    """With one sample in the batch, an incoming gradient in channels-last memory is read in the wrong order."""
    leaf, g = x(1, 2, 3, 3).requires_grad_(), x(1, 2, 3, 3, seed=1)
    out = torch.nn.functional.instance_norm(leaf)
    last = g.contiguous(memory_format=torch.channels_last)
    grads = [torch.autograd.grad(out, leaf, cotangent, retain_graph=True)[0] for cotangent in (g, last)]
    return float((grads[0] - grads[1]).abs().max())


def view_as_real() -> float:
    """Backward needs an incoming gradient at an even offset, and raises for one that torch.cat splits at an odd one."""
    leaf = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    g = torch.cat([x(1), x(6)])[1:].view(3, 2)
    try:
        torch.autograd.grad(torch.view_as_real(leaf), leaf, g)
    except RuntimeError:
        return 1.0
    return 0.0


def as_strided() -> float:
    """It reads memory, by definition: the same values in other memory give others."""
    plain = x(3, 3)
    return float((torch.as_strided(plain, (2,), (1,)) - torch.as_strided(plain.mT.contiguous().mT, (2,), (1,))).norm())


def masked_median() -> float:
    """The median of five equal numbers in memory of stride 0 is another number."""
    row = torch.full((1,), -4.0, dtype=torch.float64)
    return abs(float(torch.masked.median(row.expand(5), 0)) + 4)


def product_scattered() -> float:
    """What is not scattered to keeps its own value; backward knows that, forward mode does not."""
    own, index, source = x(3), torch.tensor([0, 0]), x(2, seed=1)
    _, tangent = torch.func.jvp(
        lambda t: t.scatter_reduce(0, index, source, "prod", include_self=False), (own,), (torch.ones_like(own),)
    )
    return float((tangent - torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)).abs().max())


def cholesky_inverse() -> float:
    """Forward mode uses the upper triangle of the tangent, which the function does not read."""
    factor = torch.linalg.cholesky(x(3, 3) @ x(3, 3).mT + torch.eye(3, dtype=torch.float64))
    _, tangent = torch.func.jvp(torch.cholesky_inverse, (factor,), (x(3, 3, seed=1).triu(1),))
    return float(tangent.abs().max())


def max_unpool() -> float:
    """Where an index occurs twice, one value is written and both get a gradient."""
    index = torch.tensor([[[0, 0]]])
    return float(gradient(lambda t: torch.nn.functional.max_unpool1d(t, index, 2), x(1, 1, 2)).sum()) - 1


def raises_when_transposed(function: Callable[[Tensor], Tensor], *shape: int) -> float:
    leaf = x(*reversed(shape)).permute(*range(len(shape))[::-1]).detach().requires_grad_()
    try:
        torch.autograd.grad(function(leaf).sum(), leaf)
    except RuntimeError:
        return 1.0
    return 0.0


def max_unpool_transposed() -> float:
    index = torch.arange(8).reshape(1, 1, 2, 4).expand(2, 2, 2, 4).permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    return raises_when_transposed(lambda t: torch.nn.functional.max_unpool2d(t, index, (2, 1)), 2, 2, 2, 4)


def nll_loss_transposed() -> float:
    target = torch.zeros(2, 2, 2, dtype=torch.long)
    return raises_when_transposed(lambda t: torch.nn.functional.nll_loss(t, target), 2, 3, 2, 2)


def group_norm_weight() -> float:
    """A weight in memory of stride 0 is read as if it were contiguous."""
    weight = x(1).expand(4)
    ones = x(1, 4, 3)
    got = torch.native_group_norm(ones, weight, None, 1, 4, 3, 1, 1e-5)[0]
    want = torch.native_group_norm(ones, weight.contiguous(), None, 1, 4, 3, 1, 1e-5)[0]
    return float((got - want).abs().nan_to_num(1.0).max())


def batch_norm() -> float:
    """Running statistics are changed, by definition, and no version counter says so."""
    mean, variance = x(3), 1 + x(3).abs()
    torch.nn.functional.batch_norm(x(4, 3), before := mean.clone(), variance, training=True)
    return float((before - mean).abs().max())


def normal() -> float:
    """A draw moves with its mean; its gradient is zero by PyTorch's definition."""
    return abs(float(gradient(lambda m: torch.normal(m, 1.0), t(0.0))) - 1)


def native_group_norm() -> float:
    """The gradient of the mean alone, over eight elements, is an eighth each; with the deviation's it is there."""
    leaf = x(1, 4, 2).requires_grad_()
    _, mean, deviation = torch.native_group_norm(leaf, None, None, 1, 4, 2, 1, 1e-5)
    (alone,) = torch.autograd.grad(mean, leaf, torch.ones_like(mean), retain_graph=True, allow_unused=True)
    both = [torch.ones_like(mean), torch.zeros_like(deviation)]
    (beside_zeros,) = torch.autograd.grad([mean, deviation], leaf, both)
    assert torch.allclose(beside_zeros, torch.full_like(leaf, 0.125))
    return 1.0 if alone is None else float((8 * alone - 1).abs().max())


def chunked_cross_entropy() -> float:
    """The gradient carries no graph, although it is not constant."""
    from tests.controls.op_db import operators, samples

    name = "nn.functional.linear_cross_entropy.chunked"
    every = operators()
    if name not in every:
        return math.nan
    sample = samples(name, every[name], 1)[0]
    (grad,) = torch.autograd.grad(
        sample.function(*sample.args, **sample.kwargs).sum(), sample.args[0], create_graph=True
    )
    return 0.0 if grad.requires_grad else 1.0


GAMMA = (
    "digamma",
    "lgamma",
    "special.gammaln",
    "mvlgamma.mvlgamma_p_1",
    "mvlgamma.mvlgamma_p_3",
    "mvlgamma.mvlgamma_p_5",
    "polygamma.polygamma_n_0",
    "polygamma.polygamma_n_1",
    "special.polygamma.special_polygamma_n_0",
    "special.polygamma",
)
GRADIENT, SECOND = "matches-differences", "second-order"

FAULTS: dict[str, Fault] = {
    "hardsigmoid": Fault(
        "the constant 1/6 is a float32 in float64 too: relative error 3e-8",
        ("nn.functional.hardsigmoid",),
        (GRADIENT, SECOND),
        hardsigmoid,
        1e-9,
    ),
    "sinc": Fault(
        "the second derivative at 0 is NaN where it is -pi^2/3", ("sinc", "special.sinc"), (SECOND,), sinc, 1e-6
    ),
    "trigamma": Fault(
        "trigamma is off by a relative 5e-10 at 1 in float64; it is the gradient of digamma",
        GAMMA,
        (GRADIENT, SECOND),
        trigamma,
        1e-11,
    ),
    "as_strided_scatter": Fault(
        "the gradient of the input is wrong for overlapping or offset windows; plain gradcheck fails too",
        ("as_strided_scatter",),
        (GRADIENT, SECOND, "cotangent-layouts", "input-layouts", "modes-agree"),
        as_strided_scatter,
        1.0,
    ),
    "weight_norm": Fault(
        "double backward of the fused weight norm on the CPU is wrong; plain gradgradcheck fails too",
        (),
        (SECOND,),
        weight_norm,
        1.0,
    ),
    "det of a negated matrix": Fault(
        "the gradient at a matrix with the negative bit in memory with gaps is transposed",
        ("linalg.det", "det", "linalg.slogdet", "logdet"),
        ("input-layouts",),
        negated_determinant,
        0.1,
    ),
    "instance_norm": Fault(
        "with one sample in the batch an incoming gradient in channels-last memory is read in the wrong order",
        ("nn.functional.instance_norm",),
        ("cotangent-layouts",),
        instance_norm,
        0.1,
    ),
    "view_as_real": Fault(
        "backward raises for an incoming gradient at an odd offset in its memory",
        ("view_as_real",),
        ("cotangent-layouts",),
        view_as_real,
        1.0,
    ),
    "as_strided": Fault(
        "it reads memory and not elements, by definition: other values where the input has other strides",
        ("as_strided", "as_strided_copy", "as_strided.partial_views", "stft"),
        ("input-layouts",),
        as_strided,
        1e-3,
    ),
    "masked.median": Fault(
        "the median of equal numbers in memory of stride 0 is another number",
        ("masked.median",),
        ("input-layouts",),
        masked_median,
        0.5,
    ),
    "scatter_reduce": Fault(
        "forward mode of a product without its own values loses those that nothing is scattered to",
        ("scatter_reduce.prod",),
        ("modes-agree",),
        product_scattered,
        0.5,
    ),
    "cholesky_inverse": Fault(
        "forward mode uses the upper triangle of the tangent, which the function does not read",
        ("cholesky_inverse",),
        ("modes-agree", "nested-forward"),
        cholesky_inverse,
        0.01,
    ),
    "max_unpool": Fault(
        "where an index occurs twice one value is written, and both get a gradient",
        ("nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),
        (GRADIENT, SECOND, "modes-agree"),
        max_unpool,
        0.5,
    ),
    "max_unpool of a transposed input": Fault(
        "backward raises for inputs and indices that are not contiguous",
        tuple(f"nn.functional.max_unpool{d}d{grad}" for d in (1, 2, 3) for grad in ("", ".grad")),
        ("input-layouts",),
        max_unpool_transposed,
        1.0,
    ),
    "nll_loss of a transposed input": Fault(
        "backward raises for an input that is not contiguous",
        ("nn.functional.nll_loss", "nn.functional.cross_entropy"),
        ("input-layouts",),
        nll_loss_transposed,
        1.0,
    ),
    "native_group_norm of an expanded weight": Fault(
        "a weight in memory of stride 0 is read as if it were contiguous",
        ("native_group_norm", "nn.functional.group_norm"),
        ("input-layouts",),
        group_norm_weight,
        0.01,
    ),
    "batch_norm": Fault(
        "running statistics among the inputs are changed, by definition",
        (
            "nn.functional.batch_norm",
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
        ),
        ("inputs-untouched",),
        batch_norm,
        1e-3,
    ),
    "det": Fault(
        "the gradient at a singular matrix with a zero pivot is zeros without create_graph, the adjugate with it",
        ("linalg.det", "det"),
        (GRADIENT, SECOND),
        determinant,
        0.5,
    ),
    "normal": Fault(
        "the gradient of a draw with respect to its mean and deviation is defined as zero",
        ("normal", "normal.number_mean"),
        (GRADIENT, SECOND, "modes-agree"),
        normal,
        0.5,
    ),
    "native_group_norm": Fault(
        "the gradients of the mean and of the deviation are dropped unless both outputs are used by the loss",
        ("native_group_norm",),
        ("undefined-cotangents",),
        native_group_norm,
        0.5,
    ),
    "linear_cross_entropy": Fault(
        "the chunked form works its gradient out in forward; the second derivative is missing without a word",
        ("nn.functional.linear_cross_entropy.chunked", "nn.functional.linear_cross_entropy.chunked_none"),
        (SECOND, "gradient-penalty"),
        chunked_cross_entropy,
        0.5,
    ),
}


def excused(operator: str, contract: str) -> bool:
    """Tell whether an accusation is one of the known faults."""
    return any(operator in fault.operators and contract in fault.contracts for fault in FAULTS.values())
