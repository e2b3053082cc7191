"""What is special about BitNet b1.58; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import OptionError


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_exactly_three_weights(dtype: torch.dtype) -> None:
    w = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = gw.ste.bitnet_weights(w)
    assert len(out.unique()) == 3
    scale = w.double().abs().mean()
    composed = w + ((w / scale).round().clamp(-1, 1) * scale - w).detach()  # the detach idiom
    if dtype in (torch.float32, torch.bfloat16):
        assert len(composed.to(dtype).unique()) > 3


def test_the_formula_of_the_authors() -> None:
    w = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scale = 1 / w.abs().mean().clamp(min=1e-5)
    torch.testing.assert_close(gw.ste.bitnet_weights(w), (w * scale).round().clamp(-1, 1) / scale)
    scales = 127 / w.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    torch.testing.assert_close(gw.ste.bitnet_activations(w), (w * scales).round().clamp(-128, 127) / scales)


def test_special_values() -> None:
    for function in (gw.ste.bitnet_weights, gw.ste.bitnet_activations):
        for dims in ((), (0,), (3, 0), (2, 3)):
            assert torch.equal(function(torch.zeros(dims)), torch.zeros(dims))
    x = torch.tensor([[torch.inf, 1.0], [torch.nan, 1.0], [1.0, 2.0]])
    assert bool(gw.ste.bitnet_weights(x).isnan().all())
    assert gw.ste.bitnet_activations(x).isnan().tolist() == [[True, True], [True, True], [False, False]]


def test_errors() -> None:
    x = torch.ones(3)
    with pytest.raises(OptionError, match="bitnet_weights: eps is 0; expected a positive number"):
        gw.ste.bitnet_weights(x, eps=0)
    with pytest.raises(OptionError, match="bitnet_activations: eps is -1; expected a positive number"):
        gw.ste.bitnet_activations(x, eps=-1)
    with pytest.raises(OptionError, match="bitnet_activations: bits is 1; expected at least 2"):
        gw.ste.bitnet_activations(x, bits=1)
