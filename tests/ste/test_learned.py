"""What is special about learned steps and offsets; the suite of the catalogue proves the rest."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError


def test_between_the_top_code_and_the_tie_above_the_step_moves_and_the_value_does_not() -> None:
    # What tells LSQ from masks after rounding: 0.72 = 7.2 steps is rounded to the top code 7, and clipped before that.
    x, s = torch.tensor(0.72, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    lsq = torch.autograd.grad(gw.ste.lsq(x, s, bits=4, gradient_scale=1.0), (x, s))
    assert [g.item() for g in lsq] == [0.0, 7.0]
    usual = torch.autograd.grad(gw.ste.fake_quantize(x, s, low=-8, high=7), (x, s))
    assert [round(g.item(), 5) for g in usual] == [1.0, -0.2]


@pytest.mark.parametrize(("bits", "signed", "high"), [(4, True, 7), (3, False, 7), (2, True, 1), (1, False, 1)])
def test_the_gradient_scale_is_that_of_the_paper(bits: int, signed: bool, high: int) -> None:
    x = torch.linspace(-3, 3, 50, dtype=torch.float64).reshape(5, 10)
    for axis, count, shape in ((None, 50, ()), (0, 10, (5,)), (1, 5, (10,))):
        s = torch.full(shape, 0.25, dtype=torch.float64, requires_grad=True)
        options = {"bits": bits, "signed": signed, "axis": axis}
        (plain,) = torch.autograd.grad(gw.ste.lsq(x, s, gradient_scale=1.0, **options).sum(), s)
        (scaled,) = torch.autograd.grad(gw.ste.lsq(x, s, **options).sum(), s)
        torch.testing.assert_close(scaled, plain / (count * high) ** 0.5)


def test_one_signed_bit_has_no_positive_code_to_divide_by() -> None:
    x, s = torch.tensor([-0.7, 0.2]), torch.tensor(0.5, requires_grad=True)
    out = gw.ste.lsq(x, s, bits=1)
    assert out.tolist() == [-0.5, 0.0]
    (grad,) = torch.autograd.grad(out.sum(), s)
    assert grad.item() == pytest.approx(-1 / 2**0.5)  # the code -1, and 0, over the root of N
    assert gw.ste.lsq_scale(x, 1).item() == pytest.approx(0.9)


def test_the_step_to_start_from() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, 2.0], [0.5, 0.5, 0.0, -1.0]], requires_grad=True)
    whole = gw.ste.lsq_scale(x, 4)
    assert not whole.requires_grad
    torch.testing.assert_close(whole, torch.tensor(2 * 1.25 / 7**0.5))
    torch.testing.assert_close(gw.ste.lsq_scale(x, 3, signed=False, axis=0), torch.tensor([4.0, 1.0]) / 7**0.5)
    groups = gw.ste.lsq_scale(x, 2, axis=1, group_size=2)
    torch.testing.assert_close(groups, torch.tensor([[3.0, 5.0], [1.0, 1.0]]))
    assert gw.ste.lsq(x, groups, bits=2, axis=1, group_size=2).shape == x.shape
    assert gw.ste.lsq_scale(x.bfloat16(), 4).dtype == torch.bfloat16


def test_an_offset_of_zero_is_lsq() -> None:
    x = torch.linspace(-2, 2, 31, requires_grad=True)
    s, zero = torch.tensor(0.25, requires_grad=True), torch.tensor(0.0)
    one, other = gw.ste.lsq(x, s, bits=3), gw.ste.lsq_plus(x, s, zero, bits=3)
    assert torch.equal(one, other)
    for a, b in zip(torch.autograd.grad(one.sum(), (x, s)), torch.autograd.grad(other.sum(), (x, s))):
        torch.testing.assert_close(a, b)


def test_learned_parameters_refuse_a_second_derivative() -> None:
    x, s = torch.tensor([0.3, 0.6]), torch.tensor(0.25, requires_grad=True)
    (grad,) = torch.autograd.grad(gw.ste.lsq(x, s, bits=3).sum(), s, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.backward()


def test_errors() -> None:
    x = torch.zeros(2, 6)
    with pytest.raises(ArgumentError, match=r"lsq: a parameter has the shape \(3,\); expected one number or \(2,\)"):
        gw.ste.lsq(x, torch.ones(3), bits=4, axis=0)
    with pytest.raises(OptionError, match="lsq_plus: group_size=4 for 6 elements along axis 1; expected a divisor"):
        gw.ste.lsq_plus(x, 1.0, 0.0, bits=4, axis=1, group_size=4)
    with pytest.raises(OptionError, match="lsq_scale: group_size=2 without axis"):
        gw.ste.lsq_scale(x, 4, group_size=2)
    with pytest.raises(OptionError, match="codes: bits is 0"):
        gw.ste.lsq(x, 1.0, bits=0)


def test_the_first_step_of_a_vector_by_element_is_one_for_each() -> None:
    """PyTorch takes a mean over no dimensions for one over all."""
    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    found = gw.ste.lsq_scale(x, 3, signed=False, axis=0)
    torch.testing.assert_close(found, 2 * x.abs() / 7**0.5)
