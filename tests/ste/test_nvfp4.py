"""What is special about NVFP4; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import OptionError


def with_pytorch_casts(x: Tensor) -> Tensor:
    """Compute NVFP4 of one block a row with PyTorch's own cast for the scales."""
    whole = x.abs().max() / (6 * 448)
    sizes = x.abs().amax(-1, keepdim=True)
    scales = (sizes / whole / 6).clamp(max=448).to(torch.float8_e4m3fn).float().clamp(min=2.0**-9)
    codes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    v = (x / (scales * whole)).abs()
    near = codes[(v[..., None] - codes).abs().argmin(-1)]
    return torch.copysign(near * scales * whole, x)


def test_scales_are_pytorch_casts() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 16, generator=generator) * torch.logspace(-4, 2, 64)[:, None]
    assert torch.equal(gw.ste.nvfp4(x), with_pytorch_casts(x))


def test_the_largest_size_stays() -> None:
    x = torch.tensor([10.5, -0.1, 3.0])
    assert gw.ste.nvfp4(x)[0] == 10.5


def test_the_whole_tensor_sets_the_scale() -> None:
    x = torch.full((32,), 0.01)
    alone = gw.ste.nvfp4(x)[:16]
    x[20] = 1e5  # so that the scale of the first block is a small number of E4M3
    assert not torch.equal(gw.ste.nvfp4(x)[:16], alone)
    assert torch.equal(gw.ste.nvfp4(x, tensor_scale=2.0**-12)[:16], gw.ste.nvfp4(x[:16], tensor_scale=2.0**-12))


def test_special_values() -> None:
    assert torch.equal(gw.ste.nvfp4(torch.zeros(20)), torch.zeros(20))
    assert gw.ste.nvfp4(torch.zeros(3, 0)).shape == (3, 0)
    x = torch.full((32,), 6.0)
    x[3] = torch.nan
    assert bool(gw.ste.nvfp4(x).isnan().all())
    out = gw.ste.nvfp4(x, tensor_scale=1.0)
    assert bool(out[:16].isnan().all())
    assert bool((out[16:] == 6).all())


def test_errors() -> None:
    with pytest.raises(OptionError, match="nvfp4: axis=3 for a tensor of 1 dimensions"):
        gw.ste.nvfp4(torch.ones(4), axis=3)
    with pytest.raises(Exception, match="tensor_scale"):
        gw.ste.nvfp4(torch.ones(4), tensor_scale=torch.tensor(1.0, requires_grad=True))
