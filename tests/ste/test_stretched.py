"""What is special about stretched elastic quantisation; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError


def test_the_range_is_divided_evenly() -> None:
    x = torch.linspace(-1, 1, 120_001, dtype=torch.float64)
    for levels in (3, 4, 8):
        out = gw.ste.seq(x, 1.0, levels=levels)
        values, counts = out.unique(return_counts=True)
        assert len(values) == levels
        torch.testing.assert_close(values, -values.flip(0))
        assert counts.max() - counts.min() <= 2


def test_the_mask_ends_where_the_range_is_cut_in_every_dtype() -> None:
    for dtype in (torch.float32, torch.float64):
        cut = torch.tensor(0.99, dtype=dtype)
        next_one = torch.nextafter(cut, torch.ones((), dtype=dtype))
        x = torch.stack([cut, next_one, -cut, -next_one]).requires_grad_()
        (grad,) = torch.autograd.grad(gw.ste.seq(x, 1.0, levels=4).sum(), x)
        assert grad.tolist() == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(("levels", "above"), [(3, 1), (4, 1), (8, 3), (16, 7)])
def test_the_gradient_scale(levels: int, above: int) -> None:
    x = torch.linspace(-2, 2, 60, dtype=torch.float64).reshape(6, 10)
    a = torch.ones(6, dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad(gw.ste.seq(x, a, levels=levels, axis=0, gradient_scale=1.0).sum(), a)
    (scaled,) = torch.autograd.grad(gw.ste.seq(x, a, levels=levels, axis=0).sum(), a)
    torch.testing.assert_close(scaled, plain / (10 * above) ** 0.5)


def test_errors() -> None:
    with pytest.raises(OptionError, match="seq: levels is 2; expected a whole number from 3"):
        gw.ste.seq(torch.zeros(2), 1.0, levels=2)
    with pytest.raises(OptionError, match=r"seq: clip is 1\.5; expected more than 0 and at most 1"):
        gw.ste.seq(torch.zeros(2), 1.0, levels=4, clip=1.5)
