"""What is special about fake quantisation; the suite of the catalogue proves the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError

X = torch.tensor([[-3.0, -0.3, 0.1], [0.6, 1.9, 40.0]], dtype=torch.float64)


def test_codes() -> None:
    assert gw.ste.codes(2) == (-2, 1)
    assert gw.ste.codes(8, signed=False) == (0, 255)
    assert gw.ste.codes(8, narrow=True) == (-127, 127)
    assert gw.ste.codes(1) == (-1, 0)
    for bits, options in ((0, {}), (-1, {}), (1, {"narrow": True})):
        with pytest.raises(OptionError, match="codes: bits is"):
            gw.ste.codes(bits, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"low": 3, "high": 3}, r"low is 3 and high 3; expected low < high"),
        ({"mask": "pre"}, r"mask: got 'pre'; expected one of none, range"),
        ({"edges": "open"}, r"edges: got 'open'; expected one of inclusive, exclusive"),
        ({"trust": 0.1}, r"trust is 0\.1 with mask='post-round'"),
        ({"mask": "trust"}, r"trust is None with mask='trust'"),
        ({"group_size": 2}, r"group_size=2 without axis"),
        ({"axis": 2}, r"axis=2 for a tensor of 2 dimensions"),
        ({"axis": 1, "group_size": 2}, r"group_size=2 for 3 elements along axis 1; expected a divisor"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=f"fake_quantize: {text}"):
        gw.ste.fake_quantize(X, 0.25, **{"low": -8, "high": 7, **options})


def test_a_parameter_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a parameter has the shape \(2,\); expected one number or \(3,\)"):
        gw.ste.fake_quantize(X, torch.ones(2), low=-8, high=7, axis=1)


def test_channels_and_groups_are_what_each_is_alone() -> None:
    scales = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    columns = [gw.ste.fake_quantize(X[:, i], float(scales[i]), low=-8, high=7) for i in range(3)]
    for axis in (1, -1):
        assert torch.equal(gw.ste.fake_quantize(X, scales, low=-8, high=7, axis=axis), torch.stack(columns, 1))
    wide = torch.cat([X, 2 * X], 1)
    scales = torch.tensor([[0.25, 0.5], [1.0, 2.0]], dtype=torch.float64)
    out = gw.ste.fake_quantize(wide, scales, low=-8, high=7, axis=1, group_size=3)
    for i in range(2):
        for j in range(2):
            part = gw.ste.fake_quantize(wide[i, 3 * j : 3 * j + 3], float(scales[i, j]), low=-8, high=7)
            assert torch.equal(out[i, 3 * j : 3 * j + 3], part)


def test_a_constant_step_has_second_derivatives_and_a_learned_one_refuses_them() -> None:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(gw.ste.fake_quantize(x, 0.25, low=-8, high=7).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    inside = torch.tensor([[0.0, 1, 1], [1, 0, 0]], dtype=torch.float64)
    assert torch.equal(second, 2 * inside)
    scale = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    out = gw.ste.fake_quantize(x, scale, low=-8, high=7).square().sum()
    (first,) = torch.autograd.grad(out, x, create_graph=True)
    with pytest.raises(RuntimeError, match="its gradient was differentiated again"):
        torch.autograd.grad(first.sum() + x.sum(), x)


def test_half_precision_has_the_codes_of_float32() -> None:
    x = torch.linspace(-20, 20, 401)
    for dtype in (torch.bfloat16, torch.float16):
        half = gw.ste.fake_quantize(x.to(dtype), 0.125, low=-128, high=127)
        assert torch.equal(half.float(), gw.ste.fake_quantize(x.to(dtype).float(), 0.125, low=-128, high=127))
