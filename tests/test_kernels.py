"""Kernels of torch that are mended: that they are right, and that they still must be."""

from __future__ import annotations

import math

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


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Return numbers of all kinds, with subnormal ones."""
    info = torch.finfo(dtype)
    low, high = math.log10(info.smallest_normal * info.eps), math.log10(info.max)
    size = torch.logspace(low + 1, high - 1, 60, dtype=torch.float64).to(dtype)
    ends = torch.tensor([0.0, -0.0, info.smallest_normal * info.eps, info.max, -torch.inf, torch.nan], dtype=dtype)
    return torch.cat([size, -size, 2.0 ** torch.arange(-3, 3).to(dtype), ends])


@DTYPES
def test_compiled_frexp_is_that_of_eager_mode(dtype: torch.dtype) -> None:
    torch.compiler.reset()
    x = numbers(dtype)
    mantissa, exponent = torch.frexp(x)
    mantissas, exponents = torch.compile(lambda x: kernels.frexp(x * 1.0), fullgraph=True)(x)
    assert torch.equal(mantissas.signbit() & ~x.isnan(), x.signbit() & ~x.isnan())
    torch.testing.assert_close(mantissas, mantissa, rtol=0, atol=0, equal_nan=True)
    finite = x.isfinite()
    assert exponents.dtype == torch.int32
    assert torch.equal(exponents[finite], exponent[finite])


def test_torch_s_own_compiled_frexp_still_fails() -> None:
    """When this fails, the mended one is no longer needed."""
    torch.compiler.reset()

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return torch.frexp(x).exponent + 1

    with pytest.raises(torch._inductor.exc.InductorError):
        torch.compile(shifted)(numbers(torch.float64))
