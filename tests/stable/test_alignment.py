"""Rigid alignment: rotations, symmetric and flat sets, mirror images, and points that coincide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, UndefinedGradientError
from gradwright.stable.alignment import ROTATION, TETRAHEDRON
from tests.stable.test_polar import normal

REGULAR = torch.tensor(TETRAHEDRON, dtype=torch.float64)
QUARTER = torch.tensor(ROTATION, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dimensions", [1, 2, 3, 5])
def test_the_motion_is_found(dimensions: int, dtype: torch.dtype) -> None:
    p = normal(4, 7, dimensions, dtype=dtype)
    r = gw.stable.orthogonal_factor(normal(4, dimensions, dimensions, dtype=dtype, seed=1), proper=True)
    t = normal(4, dimensions, dtype=dtype, seed=2)
    found = gw.stable.kabsch(p, p @ r.mT + t[:, None])
    torch.testing.assert_close(found.rotation, r)
    torch.testing.assert_close(found.translation, t)
    assert not found.rmsd.any()
    assert found.rmsd.dtype == dtype


def test_it_is_the_best_one() -> None:
    p, q, w = normal(6, 3), normal(6, 3, seed=1), normal(6, seed=2).abs()
    found = gw.stable.kabsch(p, q, w)

    def deviation(r: Tensor, t: Tensor) -> Tensor:
        return ((w * (p @ r.mT + t - q).square().sum(-1)).sum() / w.sum()).sqrt()

    torch.testing.assert_close(found.rmsd, deviation(found.rotation, found.translation))
    for seed in range(20):
        near = gw.stable.orthogonal_factor(found.rotation + 0.1 * normal(3, 3, seed=seed), proper=True)
        assert deviation(near, found.translation + 0.1 * normal(3, seed=seed)) > found.rmsd
    same = gw.stable.kabsch(p, q, torch.full((6,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(same.rotation, gw.stable.kabsch(p, q).rotation)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (REGULAR, 1.5 * REGULAR @ QUARTER.mT + 2),
        (REGULAR * torch.tensor([1.0, 1.0, 0.0]), normal(4, 3)),
        (normal(4, 3), normal(4, 3) * torch.tensor([1.0, 1.0, -1.0])),
        (normal(2, 3, 2), normal(2, 3, 2, seed=1)),
    ],
)
def test_differences_agree_in_every_mode(p: Tensor, q: Tensor) -> None:
    p, q = p.clone().requires_grad_(), q.clone().requires_grad_()
    w = normal(*p.shape[:-1], seed=3).abs().requires_grad_()
    assert torch.autograd.gradcheck(gw.stable.kabsch, (p, q, w), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(gw.stable.kabsch, (p, q, w))


def test_where_points_coincide_the_deviation_has_the_gradient_of_least_norm() -> None:
    p = REGULAR.clone().requires_grad_()
    found = gw.stable.kabsch(p, REGULAR @ QUARTER.mT + 1)
    (first,) = torch.autograd.grad(found.rmsd, p, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), p)
    assert found.rmsd == 0
    assert not first.any()
    assert not second.any()
    p = normal(50, 3, seed=1).requires_grad_()
    (first,) = torch.autograd.grad(gw.stable.kabsch(p, 1e3 * QUARTER[0] + p.detach() @ QUARTER.mT).rmsd, p)
    assert not first.any(), "what rounding leaves has no direction"


LINE = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], dtype=torch.float64)


def test_points_on_a_line_have_many_best_rotations() -> None:
    p = LINE.clone().requires_grad_()
    found = gw.stable.kabsch(p, normal(3, 3))
    words = "kabsch: a gradient is asked for where two rotations are equally near"
    for out in (found.rotation[0, 0], found.translation[0], found.rmsd):
        with pytest.raises(UndefinedGradientError, match=words):
            torch.autograd.grad(out, p, retain_graph=True)
    assert not torch.autograd.grad(0 * found.rmsd, p)[0].any()
    assert not torch.autograd.grad(gw.stable.kabsch(p, LINE + 1).rmsd, p)[0].any(), "it cannot be less than zero"


def test_a_mirror_image_with_equal_extents_has_no_rotation_but_a_reflection() -> None:
    p = REGULAR.clone().requires_grad_()
    with pytest.raises(UndefinedGradientError, match="nor be a mirror image with two equal extents"):
        torch.autograd.grad(gw.stable.kabsch(p, -REGULAR).rotation[0, 1], p)
    found = gw.stable.kabsch(p, -REGULAR, reflection=True)
    torch.testing.assert_close(found.rotation, -torch.eye(3, dtype=torch.float64))
    assert bool(torch.autograd.grad(found.rotation[0, 1], p)[0].isfinite().all())
    flat = (REGULAR * torch.tensor([1.0, 1.0, 0.0])).requires_grad_()
    with pytest.raises(UndefinedGradientError, match="kabsch: a gradient is asked for at a matrix without full rank"):
        torch.autograd.grad(gw.stable.kabsch(flat, REGULAR, reflection=True).rotation[0, 1], flat)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: gw.stable.kabsch(p.tolist(), p), "kabsch: P is a list; expected a tensor"),
        (lambda p: gw.stable.kabsch(p, p.long()), "kabsch: Q has dtype torch.int64; expected float32"),
        (lambda p: gw.stable.kabsch(p + 0j, p + 0j), "kabsch: P has dtype torch.complex128; expected real points"),
        (lambda p: gw.stable.kabsch(p, p[:2]), r"and Q is torch.float64 of shape \(2, 3\); expected the same"),
        (lambda p: gw.stable.kabsch(p, p.float()), r"Q is torch.float32 of shape \(4, 3\); expected the same"),
        (
            lambda p: gw.stable.kabsch(p, p, torch.ones(3).double()),
            r"weights is torch.float64 of shape \(3,\); expected",
        ),
        (
            lambda p: gw.stable.kabsch(p, p, torch.tensor([1.0, -0.25, 2.0, 1.0]).double()),
            "weights has negative elements, down to -0.25; expected none below 0",
        ),
    ],
)
def test_bad_arguments(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call(REGULAR)


def test_weights_of_zero_leave_points_out() -> None:
    weights = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    found, want = gw.stable.kabsch(REGULAR, 2 * REGULAR, weights), gw.stable.kabsch(REGULAR[:3], 2 * REGULAR[:3])
    torch.testing.assert_close(found.rmsd, want.rmsd)
