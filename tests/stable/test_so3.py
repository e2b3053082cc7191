"""What is special about the exponential and the logarithm of rotations; the suite of the catalogue proves the rest."""

from __future__ import annotations

import math
import re

import pytest
import torch

from gradwright.errors import ArgumentError
from gradwright.stable import so3_exp, so3_log
from gradwright.stable.rotation_samples import AXIS
from tests.stable.rotations import turns


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_the_logarithm_undoes_the_exponential(dtype: torch.dtype, bar: float) -> None:
    w = turns(dtype)[: None if dtype == torch.float64 else -1]  # the last is half a turn in float32
    size = w.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
    assert bool(((so3_log(so3_exp(w)) - w) / size).abs().max() < bar)


def test_the_round_trip_has_the_derivative_of_the_identity() -> None:
    w = turns().reshape(-1, 3)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda v: so3_log(so3_exp(v))))(w)
    torch.testing.assert_close(jacobian, torch.eye(3, dtype=w.dtype).expand_as(jacobian), rtol=0, atol=1e-12)


def test_it_is_the_exponential_of_the_matrix() -> None:
    w = turns()
    x, y, z = w.unbind(-1)
    o = torch.zeros_like(x)
    k = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).reshape(*x.shape, 3, 3)
    torch.testing.assert_close(so3_exp(w), torch.linalg.matrix_exp(k), rtol=0, atol=1e-14)


def test_nothing_is_nan_at_the_identity_where_the_written_formula_is() -> None:
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    angle = w.norm()
    (written,) = torch.autograd.grad((torch.sin(angle) / angle * w).sum(), w)
    assert bool(written.isnan().all())
    hessian = torch.func.hessian(lambda v: so3_exp(v)[0, 0])(w.detach())
    torch.testing.assert_close(hessian, torch.diag(torch.tensor([0.0, -1.0, -1.0], dtype=torch.float64)))


def test_half_a_turn_has_the_axis_with_a_positive_largest_component() -> None:
    for diagonal, axis in (((1, -1, -1), (1, 0, 0)), ((-1, 1, -1), (0, 1, 0)), ((-1, -1, 1), (0, 0, 1))):
        m = torch.diag(torch.tensor(diagonal, dtype=torch.float64)).requires_grad_()
        w = so3_log(m)
        assert w.tolist() == [math.pi * x for x in axis]
        assert bool(torch.autograd.grad(w.sum(), m)[0].isfinite().all())


def test_the_gradient_at_half_a_turn_is_the_limit_from_within() -> None:
    axis = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    found = []
    for angle in (math.pi, math.pi - 1e-7):
        m = so3_exp(angle * axis)
        if angle == math.pi:
            m = torch.diag(torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64))
        m = m.requires_grad_()
        found.append(torch.autograd.grad(so3_log(m)[1], m)[0])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("axis", [AXIS, (0.6, 0.0, 0.8), (0.0, 1.0, 0.0)])
@pytest.mark.parametrize("steps", [-2, -1, 0, 1, 2])
def test_within_rounding_of_half_a_turn_either_axis_is_right(axis: tuple[float, ...], steps: int) -> None:
    angle = torch.tensor(math.pi, dtype=torch.float64)
    for _ in range(abs(steps)):
        angle = torch.nextafter(angle, torch.tensor(math.inf * steps, dtype=torch.float64))
    m = so3_exp(angle * torch.tensor(axis, dtype=torch.float64)).requires_grad_()
    w = so3_log(m)
    torch.testing.assert_close(so3_exp(w), m, rtol=0, atol=1e-14)
    assert bool(torch.autograd.grad(w.sum(), m)[0].isfinite().all())


def test_a_matrix_stands_for_the_nearest_rotation() -> None:
    torch.manual_seed(0)
    m = torch.randn(500, 3, 3, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(m)
    sign = torch.linalg.det(u @ vh).sign()
    unique = s[:, 1] + sign * s[:, 2] > 0.1 * s[:, 0]
    last = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1)
    nearest = (u * last[:, None]) @ vh
    difference = (so3_exp(so3_log(m)) - nearest).abs().amax((-1, -2))
    assert int(unique.sum()) > 300
    assert bool(difference[unique].max() < 1e-11)


def test_the_gradient_lies_in_the_tangent_space() -> None:
    m = so3_exp(turns()[5:-1]).requires_grad_()
    (g,) = torch.autograd.grad(so3_log(m).sum(), m)
    symmetric = m.mT @ g + g.mT @ m
    assert bool(symmetric.abs().max() < 1e-14)


def test_a_reflection_has_no_nearest_rotation() -> None:
    m = torch.diag(torch.tensor([1.0, 1.0, -1.0]))
    assert bool(so3_log(m).isnan().all())
    assert bool(so3_log(-torch.eye(3)).isnan().all())
    assert bool(so3_log(torch.full((3, 3), math.nan)).isnan().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_shapes_and_dtypes_are_kept(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (2, 1)):
        w = torch.zeros(*shape, 3, dtype=dtype)
        assert so3_exp(w).shape == (*shape, 3, 3)
        assert so3_exp(w).dtype == dtype
        assert so3_exp(w).is_contiguous()
        assert so3_log(so3_exp(w)).shape == (*shape, 3)
        assert so3_log(so3_exp(w)).dtype == dtype


def test_autocast_does_not_round() -> None:
    w = turns(torch.float32)[5:-1].requires_grad_()
    plain = torch.autograd.grad(so3_log(so3_exp(w)).square().sum(), w)[0]
    with torch.autocast("cpu", torch.bfloat16):
        within = torch.autograd.grad(so3_log(so3_exp(w)).square().sum(), w)[0]
    assert torch.equal(plain, within)


def test_bad_arguments_are_named() -> None:
    shape = (
        "so3_exp: w has shape (4, 2); expected (..., 3), rotation vectors; put the components last, as movedim does."
    )
    with pytest.raises(ArgumentError, match=f"^{re.escape(shape)}$"):
        so3_exp(torch.zeros(4, 2))
    with pytest.raises(ArgumentError, match=re.escape("so3_log: m has shape (3,); expected (..., 3, 3), rotation mat")):
        so3_log(torch.zeros(3))
    with pytest.raises(ArgumentError, match=re.escape("so3_exp: w is torch.int64; expected a floating-point tensor")):
        so3_exp(torch.zeros(3, dtype=torch.int64))


def test_pytorch_agrees_that_the_rules_are_right() -> None:
    w = torch.tensor([[0.3, -0.2, 0.9], [0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(so3_exp, w)
    assert torch.autograd.gradgradcheck(so3_exp, w)
    m = so3_exp(w.detach() + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(so3_log, m)
    assert torch.autograd.gradgradcheck(so3_log, m)
