"""What is special about ternary weights; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])


def weights(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@DTYPES
def test_three_values_for_each_size(dtype: torch.dtype) -> None:
    w = weights(7, 37).to(dtype)
    assert len(gw.ste.twn(w).unique()) == 3
    assert len(gw.ste.ttq(w, 1.3, 0.7).unique()) == 3
    for row in gw.ste.twn(w, axis=0):
        assert len(row.unique()) == 3


def test_the_best_size_for_the_threshold() -> None:
    w = weights(500)
    out = gw.ste.twn(w)
    size = float(out.max())
    errors = [float((w - out / size * other).square().sum()) for other in (0.99 * size, size, 1.01 * size)]
    assert errors[1] == min(errors)


def test_sizes_learn_what_the_loss_wants() -> None:
    w = weights(200)
    target = gw.ste.ttq(w, 1.5, 0.25)
    sizes = [torch.ones((), requires_grad=True), torch.ones((), requires_grad=True)]
    optimizer = torch.optim.SGD(sizes, lr=0.5)
    for _ in range(60):  # with the other sign of its gradient the second size would grow without end
        loss = (gw.ste.ttq(w, *sizes) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [size.item() for size in sizes] == pytest.approx([1.5, 0.25], abs=1e-3)


def test_sizes_by_slice() -> None:
    w = torch.tensor([[4.0, -4.0, 0.1], [0.2, -0.1, 0.002]])
    sizes = [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]
    out = gw.ste.ttq(w, *sizes, axis=0)
    assert out.tolist() == [[1, -3, 0], [2, -4, 0]]
    grads = torch.autograd.grad(out, sizes, torch.tensor([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]]))
    assert [grad.tolist() for grad in grads] == [[1, 2], [-10, -20]]


def test_special_values() -> None:
    for dims in ((), (0,), (3,)):
        zeros = torch.zeros(dims)
        assert torch.equal(gw.ste.twn(zeros), zeros)
        assert torch.equal(gw.ste.ttq(zeros, 1.0, 1.0), zeros)
    for bad in (torch.inf, torch.nan):
        w = torch.tensor([[bad, 1.0, 0.1], [2.0, 1.0, -2.0]])
        for out in (gw.ste.twn(w, axis=0), gw.ste.ttq(w, 1.0, 1.0, axis=0)):
            assert bool(out[0].isnan().all())
            assert bool(out[1].isfinite().all())


def test_errors() -> None:
    w = torch.ones(3)
    with pytest.raises(OptionError, match=r"twn: threshold is -0\.5; expected a number from 0"):
        gw.ste.twn(w, threshold=-0.5)
    with pytest.raises(OptionError, match="twn: axis=1 for a tensor of 1 dimensions"):
        gw.ste.twn(w, axis=1)
    with pytest.raises(OptionError, match="ttq: threshold is nan; expected a number from 0"):
        gw.ste.ttq(w, 1.0, 1.0, threshold=float("nan"))
    with pytest.raises(ArgumentError, match=r"ttq: a parameter has the shape \(2,\)"):
        gw.ste.ttq(w, torch.ones(2), 1.0, axis=0)
