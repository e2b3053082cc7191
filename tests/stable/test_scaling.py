"""Powers of two that bring numbers into the middle of a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from gradwright import stable
from gradwright.authoring.exact import whole_range
from gradwright.stable.scaling import over, scale_for, unit_sized


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


QUATERNION, OTHER = [0.4, -0.7, 0.3, 0.9], [-0.2, 0.5, 0.8, -0.1]
VECTORS = [[0.4, -0.7, 0.3], [1.1, 0.2, -0.6]]
MATRIX = [0.9, -0.4, 0.1, 0.3, 1.1, -0.2, 0.2, 0.1, 0.8]
BASES: dict[str, tuple[Callable[..., Tensor], list[list[float]]]] = {
    "quaternion_to_matrix": (stable.quaternion_to_matrix, [QUATERNION]),
    "quaternion_rotate": (lambda q: stable.quaternion_rotate(q, q.new_tensor([1.0, -2.0, 0.5])), [QUATERNION]),
    "quaternion_log": (stable.quaternion_log, [QUATERNION]),
    "slerp": (lambda p, q: stable.slerp(p, q, 0.3), [QUATERNION, OTHER]),
    "rotation_6d": (lambda a, b: stable.rotation_6d(torch.cat([a, b])), VECTORS),
    "matrix_to_quaternion": (lambda m: stable.matrix_to_quaternion(m.reshape(3, 3)), [MATRIX]),
    "so3_log": (lambda m: stable.so3_log(m.reshape(3, 3)), [MATRIX]),
    "angle_between": (stable.angle_between, VECTORS),
}
"""Functions of directions alone, with vectors of ordinary lengths, where the catalogue proves them."""
RANGE = {torch.float32: (120, 50, 2e-6), torch.float64: (1000, 480, 1e-14)}
"""The exponents of lengths for one derivative and for two, and the bar."""


def derivatives(
    function: Callable[..., Tensor], vectors: Sequence[Tensor], exponents: Sequence[int], orders: int
) -> list[list[float]]:
    """Return them at the vectors times powers of two, divided by the powers of two that they are larger by."""
    made = [torch.ldexp(v, torch.tensor(k)).requires_grad_() for v, k in zip(vectors, exponents)]
    out = function(*made)
    cotangent = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).reshape(out.shape)
    first = torch.autograd.grad(out, made, cotangent, create_graph=True)
    found = [torch.ldexp(g.detach().double(), torch.tensor(k)) for g, k in zip(first, exponents)]
    if orders == 2:
        # The direction of each is as long as the vector: derivatives of the derivative in it are as large as that.
        along = [
            torch.ldexp(torch.linspace(1.0, -0.5, v.numel(), dtype=v.dtype), torch.tensor(k))
            for v, k in zip(vectors, exponents)
        ]
        slope = sum((g * h).sum() for g, h in zip(first, along))
        found += [torch.ldexp(g.double(), torch.tensor(k)) for g, k in zip(torch.autograd.grad(slope, made), exponents)]
    return [out.tolist(), *(g.tolist() for g in found)]


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("dtype", RANGE)
def test_functions_of_directions_have_true_derivatives_at_every_length(dtype: torch.dtype, name: str) -> None:
    function, bases = BASES[name]
    vectors = [torch.tensor(base, dtype=dtype) for base in bases]
    far, near, bar = RANGE[dtype]
    truth = derivatives(function, [v.double() for v in vectors], [0, 0], 2)
    for most, orders in ((far, 1), (near, 2)):
        for k in (-most, -most // 3, -9, 9, most // 3, most):
            for exponents in ((k, k), (k, 0), (k, -k // 2)):
                found = derivatives(function, vectors, exponents, orders)
                for one, other in zip(found, truth):
                    a, b = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
                    assert float((a - b).abs().max()) <= bar * float(b.abs().max()), (exponents, one, other)


def test_what_is_about_one_in_size_is_left_as_it_is() -> None:
    x = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    assert unit_sized(x) is x
    assert unit_sized(1000 * x).abs().amax(-1).tolist() == pytest.approx([3000 / 2048, 100 / 64])
    assert unit_sized(torch.zeros(2, 0, 4)).shape == (2, 0, 4)
    assert unit_sized(torch.tensor([[0.0, 2.0**-140], [2.0**-139, 0.0]]), 2).tolist() == [[0, 2.0**-40], [2.0**-39, 0]]
