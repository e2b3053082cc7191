"""What is special about the exponential and the logarithm of rigid motions; the suite proves the rest."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from gradwright.errors import ArgumentError
from gradwright.stable import se3_exp, se3_log
from tests.stable.rotations import turns


def twists(dtype: torch.dtype = torch.float64) -> Tensor:
    w = turns(dtype)
    return torch.cat([torch.randn(w.shape, generator=torch.Generator().manual_seed(1), dtype=dtype), w], -1)


def test_the_logarithm_undoes_the_exponential() -> None:
    twist = twists()
    torch.testing.assert_close(se3_log(se3_exp(twist)), twist, rtol=0, atol=1e-13 * 4)


def test_it_is_the_exponential_of_the_matrix() -> None:
    twist = twists()
    v, (x, y, z) = twist[..., :3], twist[..., 3:].unbind(-1)
    o = torch.zeros_like(x)
    k = torch.stack([o, -z, y, v[..., 0], z, o, -x, v[..., 1], -y, x, o, v[..., 2], o, o, o, o], -1)
    whole = torch.linalg.matrix_exp(k.reshape(*x.shape, 4, 4))
    torch.testing.assert_close(se3_exp(twist), whole, rtol=0, atol=1e-14 * 4)


def test_a_translation_alone_is_kept() -> None:
    motion = se3_exp(torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]))
    assert motion[:3, 3].tolist() == [1, 2, 3]
    assert torch.equal(motion[:3, :3], torch.eye(3))
    assert motion[3].tolist() == [0, 0, 0, 1]
    assert se3_log(motion).tolist() == [1, 2, 3, 0, 0, 0]


def test_the_last_row_is_not_looked_at() -> None:
    motion = se3_exp(twists()[5])
    other = motion.clone()
    other[..., 3, :] = torch.nan
    other.requires_grad_()
    assert torch.equal(se3_log(other), se3_log(motion))
    (g,) = torch.autograd.grad(se3_log(other).sum(), other)
    assert bool((g[..., 3, :] == 0).all())
    assert bool(g.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_shapes_and_dtypes_are_kept(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (2, 1)):
        motion = se3_exp(torch.zeros(*shape, 6, dtype=dtype))
        assert motion.shape == (*shape, 4, 4)
        assert se3_log(motion).shape == (*shape, 6)
        assert motion.dtype == se3_log(motion).dtype == dtype


def test_bad_arguments_are_named() -> None:
    expected = "se3_exp: twist has shape (4,); expected (..., 6), twists: translation part, then rotation vector; "
    with pytest.raises(ArgumentError, match=re.escape(expected)):
        se3_exp(torch.zeros(4))
    with pytest.raises(ArgumentError, match=re.escape("se3_log: m has shape (3, 4); expected (..., 4, 4), rigid mot")):
        se3_log(torch.zeros(3, 4))


def test_pytorch_agrees_that_the_rules_are_right() -> None:
    twist = torch.tensor([[0.5, 0.1, -1.0, 0.3, -0.2, 0.9], [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    twist.requires_grad_()
    assert torch.autograd.gradcheck(se3_exp, twist)
    assert torch.autograd.gradgradcheck(se3_exp, twist)
    assert torch.autograd.gradcheck(se3_log, se3_exp(twist.detach() + 0.1).requires_grad_())
