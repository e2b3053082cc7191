"""The cross-entropy: as PyTorch's wherever that is right, and right where it is not."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError

INF = math.inf
SHAPES = [(5,), (4, 5), (2, 5, 3), (2, 5, 3, 2)]
theirs = torch.nn.functional.cross_entropy
ours = gw.stable.cross_entropy


def case(shape: tuple[int, ...], soft: bool) -> tuple[Tensor, Tensor]:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    dim = min(1, len(shape) - 1)
    if soft:
        return x, torch.randn(shape, dtype=torch.float64).softmax(dim)
    return x, torch.randint(0, 5, shape[:dim] + shape[dim + 1 :])


@pytest.mark.parametrize(("shape", "soft"), list(itertools.product(SHAPES, [False, True])))
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_it_is_that_of_torch(shape: tuple[int, ...], soft: bool, reduction: Any) -> None:
    x, target = case(shape, soft)
    for weighted, smoothing in itertools.product([False, True], [0.0, 0.2, 1.0]):
        weight = torch.rand(5, dtype=torch.float64) if weighted else None
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
        found, want = ours(x, target, weight, **options), theirs(x, target, weight, **options)
        torch.testing.assert_close(found, want)
        g = torch.randn(want.shape, dtype=torch.float64)
        torch.testing.assert_close(torch.autograd.grad(found, x, g), torch.autograd.grad(want, x, g))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_targets(smoothing: float) -> None:
    x, target = case((4, 5), False)
    for index in (-100, 3):
        target[1] = index
        found = ours(x, target, ignore_index=index, label_smoothing=smoothing)
        want = theirs(x, target, ignore_index=index, label_smoothing=smoothing)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(want, x))
    assert ours(x, torch.full((4,), -100), reduction="sum").item() == 0


def test_derivatives_of_two_orders() -> None:
    x, target = case((3, 5), False)
    soft = case((3, 5), True)[1].requires_grad_()
    for function, inputs in (
        (lambda x: ours(x, target), (x,)),
        (lambda x: ours(x, target, label_smoothing=0.1), (x,)),
        (lambda x, t: ours(x, t, label_smoothing=0.1), (x, soft)),
    ):
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, inputs, check_batched_grad=True)


def test_a_confident_and_right_answer_still_learns() -> None:
    x = torch.tensor([[0.0, 50.0, 1.0]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1])
    rest = math.exp(-50) + math.exp(-49)
    loss = ours(x, target)
    assert loss.item() == pytest.approx(rest, rel=1e-14)
    assert torch.autograd.grad(loss, x)[0][0, 1].item() == pytest.approx(-rest, rel=1e-14)
    assert theirs(x, target).item() == 0


def test_excluded_classes() -> None:
    x = torch.tensor([[0.0, -INF, 1.0], [0.0, -INF, 1.0]], dtype=torch.float64, requires_grad=True)
    soft = torch.tensor([[0.5, 0.0, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    kept = x.detach()[:, ::2].clone().requires_grad_()
    want = theirs(kept, soft[:, ::2])
    found = ours(x, soft)
    torch.testing.assert_close(found, want)
    grad, (wanted,) = torch.autograd.grad(found, x)[0], torch.autograd.grad(want, kept)
    torch.testing.assert_close(grad[:, ::2], wanted)
    assert grad[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("target", [1, 0])
def test_an_excluded_target_leaves_the_others_alone(target: int) -> None:
    x = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF], [1.0, 2.0, 3.0]], requires_grad=True)
    losses = ours(x, torch.tensor([target, 1, 2]), reduction="none")
    assert losses.isinf().tolist() == [target == 1, True, False]
    (grad,) = torch.autograd.grad(losses.sum(), x)
    assert grad.isfinite().all()
    assert grad[1].tolist() == [0, 0, 0]
    torch.testing.assert_close(grad[2].sum(), torch.tensor(0.0))


def test_a_weight_of_zero_hides_an_excluded_target() -> None:
    x = torch.tensor([[0.0, -INF], [0.0, 1.0]], requires_grad=True)
    loss = ours(x, torch.tensor([1, 0]), torch.tensor([1.0, 0.0]))
    assert loss.isfinite()
    assert torch.autograd.grad(loss, x)[0].isfinite().all()


def test_extreme_and_low_precision() -> None:
    x = torch.tensor([[0.0, 800.0], [-3e38, 3e38]], requires_grad=True)
    loss = ours(x, torch.tensor([0, 1]), reduction="none")
    assert loss.tolist() == [800, 0]
    assert torch.autograd.grad(loss.sum(), x)[0].tolist() == [[-1, 1], [0, 0]]
    for dtype in (torch.float16, torch.bfloat16):
        half, target = torch.randn(4, 5).to(dtype).requires_grad_(), torch.tensor([0, 1, 2, 3])
        loss = ours(half, target)
        assert loss.dtype == dtype
        torch.testing.assert_close(loss.float(), theirs(half.float(), target), rtol=1e-2, atol=1e-3)
        assert torch.autograd.grad(loss, half)[0].dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_half_types_count_more_than_they_can_hold(dtype: torch.dtype, smoothing: float) -> None:
    """float16 ends at 65504, which both the sum of the losses and the number of the targets may be beyond."""
    x, target = torch.zeros(70_000, 4, dtype=dtype, requires_grad=True), torch.zeros(70_000, dtype=torch.int64)
    loss = ours(x, target, label_smoothing=smoothing)
    assert loss.item() == pytest.approx(math.log(4), rel=1e-2)
    (grad,) = torch.autograd.grad(loss, x)
    want = torch.tensor([0.25 - 1 + smoothing * 0.75, *[0.25 - smoothing / 4] * 3]) / 70_000
    torch.testing.assert_close(grad[0].float(), want, rtol=2e-2, atol=6e-8)


def test_errors() -> None:
    x, target = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"cross_entropy: target has the shape \(3,\); expected \(2,\) for class"):
        ours(x, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"cross_entropy: target has the shape \(2,\); expected \(2, 3\) for prob"):
        ours(x, torch.zeros(2))
    with pytest.raises(ArgumentError, match=r"cross_entropy: target is torch\.int32; expected int64"):
        ours(x, target.int())
    with pytest.raises(ArgumentError, match=r"cross_entropy: weight has the shape \(2,\); expected one constant for"):
        ours(x, target, torch.ones(2))
    with pytest.raises(ArgumentError, match=r"weight has the shape \(3,\) and requires grad"):
        ours(x, target, torch.ones(3, requires_grad=True))
    with pytest.raises(ArgumentError, match=r"cross_entropy: x has no dimension"):
        ours(torch.tensor(1.0), target[0])
    with pytest.raises(ArgumentError, match=r"cross_entropy: x is torch\.int64; expected a floating-point tensor"):
        ours(target, target)
    with pytest.raises(OptionError, match=r"cross_entropy: reduction: got 'avg'; expected one of none, mean, sum"):
        ours(x, target, reduction="avg")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"cross_entropy: label_smoothing is 2; expected a number from 0 to 1"):
        ours(x, target, label_smoothing=2)
