"""Kernels of torch that are mended: that they are right, and that they still must be."""

from __future__ import annotations

import pytest
import torch

from gradwright.torch_compat import kernels

pytestmark = [pytest.mark.slow, pytest.mark.compile, pytest.mark.filterwarnings("ignore")]
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def points(dtype: torch.dtype) -> torch.Tensor:
    small = torch.logspace(-30, 2, 50, dtype=dtype)
    small = torch.cat([small, torch.tensor([torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps], dtype=dtype)])
    return torch.cat([small, -small, torch.tensor([0.0, -745.0, -torch.inf, torch.inf, torch.nan], dtype=dtype)])


@DTYPES
def test_compiled_expm1_has_all_digits(dtype: torch.dtype) -> None:
    torch.compiler.reset()
    x = points(dtype)
    for function in (kernels.expm1, lambda x: kernels.expm1_(x.clone())):
        got = torch.compile(function, fullgraph=True)(x)  # type: ignore[arg-type]
        torch.testing.assert_close(got, torch.expm1(x), rtol=4 * torch.finfo(dtype).eps, atol=0, equal_nan=True)


@DTYPES
def test_torch_s_own_compiled_expm1_still_has_none(dtype: torch.dtype) -> None:
    """When this fails, the mended one is no longer needed."""
    torch.compiler.reset()
    x = torch.full((64,), 1e-30, dtype=dtype)
    assert bool((torch.compile(torch.expm1)(x) == 0).all())


@DTYPES
def test_compiled_acosh_does_not_overflow(dtype: torch.dtype) -> None:
    torch.compiler.reset()
    x = torch.cat([1 + torch.logspace(-6, 30, 80, dtype=dtype), torch.tensor([1.0, torch.inf, torch.nan, 0.5])]).to(
        dtype
    )
    got = torch.compile(kernels.acosh, fullgraph=True)(x)
    torch.testing.assert_close(got, torch.acosh(x), rtol=8 * torch.finfo(dtype).eps, atol=0, equal_nan=True)


@DTYPES
def test_torch_s_own_compiled_acosh_still_does(dtype: torch.dtype) -> None:
    """When this fails, the mended one is no longer needed."""
    torch.compiler.reset()
    x = torch.full((64,), torch.finfo(dtype).max / 4, dtype=dtype)
    assert bool((torch.compile(torch.acosh)(x) == torch.inf).all())
