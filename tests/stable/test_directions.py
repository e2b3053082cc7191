"""Vectors divided by their norm: what is special about them."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError

torch.manual_seed(0)
x, y = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True), torch.randn(2, 3, 4, dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, -1])
def test_ordinary_vectors_are_those_of_pytorch(dim: int) -> None:
    torch.testing.assert_close(gw.stable.normalize(x, dim), torch.nn.functional.normalize(x, dim=dim))
    torch.testing.assert_close(gw.stable.cosine_similarity(x, y, dim), torch.cosine_similarity(x, y, dim))
    weights = torch.rand(3, 1, dtype=torch.float64) if dim == 1 else torch.rand(1, 4, dtype=torch.float64)
    theirs = torch._weight_norm(y[0], weights, dim=0 if dim == 1 else 1)
    torch.testing.assert_close(gw.stable.weight_norm(y[0], weights, 0 if dim == 1 else 1), theirs)


def test_second_derivatives() -> None:
    assert torch.autograd.gradgradcheck(lambda x: gw.stable.normalize(x, (0, 2)), x)
    assert torch.autograd.gradgradcheck(lambda x: gw.stable.cosine_similarity(x, y, 0), x)


def test_a_direction_has_the_length_1_and_does_not_depend_on_the_length() -> None:
    for factor in (1e-300, 1e-30, 1e30, 1e300):
        torch.testing.assert_close(gw.stable.normalize(x * factor), gw.stable.normalize(x), rtol=1e-15, atol=0)


def test_the_cosine_of_parallel_vectors_is_1_with_hardly_a_gradient() -> None:
    a = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    out = gw.stable.cosine_similarity(a, a.detach() * 3, 0)
    torch.testing.assert_close(out.item(), 1.0)
    assert torch.autograd.grad(out, a)[0].abs().max() < 1e-15


def test_dtypes_are_promoted() -> None:
    half, single = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    assert gw.stable.cosine_similarity(half, half, 0).dtype == torch.bfloat16
    assert gw.stable.cosine_similarity(half, single, 0).dtype == torch.float32
    assert gw.stable.pairwise_distance(half, single).dtype == torch.float32
    assert gw.stable.pairwise_distance(half, single, keepdim=True).shape == (1,)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"weight_norm: g has shape \(3,\) and v \(2, 3\); expected \(2, 1\)"):
        gw.stable.weight_norm(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ArgumentError, match=r"cosine_similarity: x2 is torch.int64"):
        gw.stable.cosine_similarity(x, torch.ones(4, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"normalize: x is torch.int64"):
        gw.stable.normalize(torch.ones(4, dtype=torch.int64))
