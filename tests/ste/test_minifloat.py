"""What is special about small floating-point formats; the suite of the catalogue proves the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError


def test_values_of_a_whole_format() -> None:
    x = torch.linspace(-7, 7, 57)
    out = gw.ste.minifloat(x, exponent_bits=2, mantissa_bits=1)
    assert out.unique().tolist() == [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_without_saturation_the_gradient_is_that_of_the_saturating_cast() -> None:
    x = torch.tensor([447.0, 448.0, 460.0, 500.0, -1e6, torch.inf], requires_grad=True)
    scale = torch.tensor(1.0, requires_grad=True)
    options: dict[str, Any] = {"exponent_bits": 4, "mantissa_bits": 3, "specials": "nan"}
    grads = [
        torch.autograd.grad(gw.ste.minifloat(x, scale, saturate=saturate, **options).sum(), (x, scale))
        for saturate in (True, False)
    ]
    assert grads[0][0].tolist() == [1, 1, 0, 0, 0, 0]
    assert torch.equal(grads[0][0], grads[1][0])
    assert grads[0][1] == grads[1][1] == 1.0 + 3 * 448.0 - 448.0


def test_a_format_finer_than_the_dtype_leaves_its_numbers() -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert torch.equal(gw.ste.minifloat(x, exponent_bits=8, mantissa_bits=20, specials="ieee"), x)


def test_errors() -> None:
    x = torch.ones(4)
    with pytest.raises(OptionError, match="minifloat: mask: got 'post-round'; expected one of range, none"):
        gw.ste.minifloat(x, exponent_bits=4, mantissa_bits=3, mask="post-round")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="minifloat: mantissa_bits is 0"):
        gw.ste.minifloat(x, exponent_bits=4, mantissa_bits=0)
    with pytest.raises(ArgumentError, match=r"minifloat: a parameter has the shape \(3,\)"):
        gw.ste.minifloat(x, torch.ones(3), exponent_bits=4, mantissa_bits=3, axis=0)
