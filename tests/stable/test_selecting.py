"""Selection by bits is selection: every bit pattern comes back as it is, and modes and transforms see no view."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwright.stable.selecting import _by_bits, keep, pick

INF, NAN = torch.inf, torch.nan
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128, torch.int64)


def values(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = torch.tensor([1.5, -0.0, INF, NAN, -INF, 1e-5, -3.0, 6e4], dtype=torch.float64)
    x = x.nan_to_num(7.0, 8.0, 9.0) if dtype == torch.int64 else x
    return x.to(dtype), x.flip(0).to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.equal(a) == b.equal(b) and torch.equal(a.nan_to_num(0.5), b.nan_to_num(0.5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_those_of_where(dtype: torch.dtype) -> None:
    a, b = values(dtype)
    mask = torch.tensor([True, False] * 4)
    for m in (mask, ~mask, mask[:1], torch.tensor(False)):
        assert same(pick(m, a, b), torch.where(m, a, b))
        assert same(keep(a, m), torch.where(m, a, torch.zeros_like(a)))
    columns = a.reshape(2, 4).T
    chosen = torch.tensor([[True], [False], [False], [True]])
    assert same(pick(chosen, columns, b[:2]), torch.where(chosen, columns, b[:2]))


def test_where_bits_cannot_be_seen() -> None:
    x = torch.ones(3)
    assert _by_bits(x)
    assert _by_bits(torch.nn.Parameter(x))
    assert not _by_bits(x.to("meta"))
    assert not _by_bits(torch._efficientzerotensor(3))
    assert keep(torch.complex(x, x).conj().imag, x > 0).tolist() == [-1.0] * 3  # a view that is negative by a flag
    assert keep(x.to("meta"), torch.ones(3, dtype=torch.bool, device="meta")).shape == (3,)


def test_gradients_in_every_mode() -> None:
    a, b = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = a > 0
    for function, inputs in (
        (lambda a, b: pick(mask, a, b) ** 2, (a, b)),
        (lambda a: pick(mask, a, b.detach()) ** 2, (a,)),
        (lambda b: pick(mask, a.detach(), b) ** 2, (b,)),
        (lambda a: keep(a, mask) ** 2, (a,)),
    ):
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, inputs, check_batched_grad=True)


def test_batches() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    mask = x > 0
    for in_dims in ((0, 0, 0), (0, None, 0), (None, 0, None)):
        given = [v if dim == 0 else v[0] for v, dim in zip((mask, x, -x), in_dims)]
        rows = [torch.where(*(v[i] if dim == 0 else v for v, dim in zip(given, in_dims))) for i in range(2)]
        assert torch.equal(torch.func.vmap(pick, in_dims=in_dims)(*given), torch.stack(rows))
