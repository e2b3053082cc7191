"""Norms as modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gradwright as gw
from gradwright.errors import OptionError


def test_rms_norm_takes_the_place_of_that_of_pytorch() -> None:
    theirs = nn.RMSNorm((3, 4), eps=1e-4, dtype=torch.float64)
    nn.init.normal_(theirs.weight)
    ours = gw.fused.RMSNorm((3, 4), eps=1e-4, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, nn.RMSNorm)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(copy.deepcopy(ours)(x), theirs(x))
    assert [*gw.fused.RMSNorm(4, elementwise_affine=False).parameters()] == []
    assert gw.fused.RMSNorm(4, device="meta", dtype=torch.float16).weight.dtype == torch.float16


def test_a_residual_is_added_and_the_sum_returned() -> None:
    x, residual = torch.randn(2, 4), torch.randn(2, 4)
    for norm in (gw.fused.RMSNorm(4), gw.fused.LayerNorm(4)):
        normed, total = norm(x, residual)
        assert torch.equal(total, x + residual)
        assert torch.equal(normed, norm(x + residual))


def test_with_an_offset_the_weight_starts_where_the_scale_is_one() -> None:
    norm = gw.fused.RMSNorm(4, eps=1e-6, offset=1.0, cast="normalized")
    assert norm.weight.tolist() == [0.0] * 4
    x = torch.randn(2, 4)
    assert torch.equal(norm(x), gw.fused.RMSNorm(4, eps=1e-6)(x))
    nn.init.ones_(norm.weight)
    norm.reset_parameters()
    assert norm.weight.tolist() == [0.0] * 4
    assert repr(norm) == "RMSNorm((4,), eps=1e-06, elementwise_affine=True, offset=1.0, cast='normalized')"


def test_the_cast_is_that_of_the_module() -> None:
    norm = gw.fused.RMSNorm(4, cast="normalized")
    assert norm(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.float32
    assert gw.fused.RMSNorm(4)(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_layer_norm_takes_the_place_of_that_of_pytorch() -> None:
    theirs = nn.LayerNorm((3, 4), eps=1e-4, bias=False)
    ours = gw.fused.LayerNorm((3, 4), eps=1e-4, bias=False)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    x = torch.randn(2, 3, 4)
    assert torch.equal(ours(x), theirs(x))


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^RMSNorm: cast: got 'input'; expected one of output, normalized"):
        gw.fused.RMSNorm(4, cast="input")  # type: ignore[arg-type]
    with pytest.raises(
        OptionError, match=r"^RMSNorm: offset is 1.0 and elementwise_affine is False; expected a weight"
    ):
        gw.fused.RMSNorm(4, elementwise_affine=False, offset=1.0)
