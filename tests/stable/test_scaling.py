"""Powers of two that bring numbers into the middle of a range."""

from __future__ import annotations

import math

import pytest
import torch

from gradwright.authoring.exact import whole_range
from gradwright.stable.scaling import over, scale_for


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 100), (torch.float64, 800)])
def test_a_scale_is_a_power_of_two_and_brings_to_the_middle(dtype: torch.dtype, bound: int) -> None:
    sizes = torch.cat([whole_range(dtype, 50).abs(), torch.tensor([0.0, math.inf], dtype=dtype)])
    scale = scale_for(sizes)
    assert (torch.frexp(scale).mantissa == 0.5).all()
    assert (torch.frexp(scale).exponent - 1).abs().max() == bound
    inside = (sizes > 2.0**-bound) & (sizes < 2.0**bound)
    scaled = (sizes * scale)[inside]
    assert ((scaled >= 1) & (scaled < 2)).all()
    assert ((sizes * scale)[sizes.isfinite()] ** 2).isfinite().all()


def test_what_is_divided_by_zero_is_zero_with_its_derivatives() -> None:
    x, size = torch.ones(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    out = over(x, size)
    first = torch.autograd.grad(out, [x, size], create_graph=True)
    assert [out.item(), *(g.item() for g in first)] == [0, 0, 0]
    assert over(torch.tensor(3.0), torch.tensor(2.0)) == 1.5
