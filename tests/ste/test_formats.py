"""Small formats: their numbers, against those that are published, and rounding to them, against PyTorch's casts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwright.errors import OptionError
from gradwright.ste.formats import Format, binade, make_format, rounded

E4M3, E5M2 = Format(4, 3, 7, "nan"), Format(5, 2, 15, "ieee")


def cast(v: Tensor, form: Format, overflow: float) -> Tensor:
    return rounded(v, form.mantissa_bits, form.smallest_normal, form.top_binade, form.largest, overflow)


@pytest.mark.parametrize(
    ("form", "largest", "normal", "smallest", "count"),
    [
        (E4M3, 448.0, 2.0**-6, 2.0**-9, 127),
        (E5M2, 57344.0, 2.0**-14, 2.0**-16, 124),
        (Format(3, 2, 3), 28.0, 0.25, 0.0625, 32),
        (Format(2, 3, 1), 7.5, 1.0, 0.125, 32),
        (Format(2, 1, 1), 6.0, 1.0, 0.5, 8),
        (Format(1, 6, 1), 127 / 64, 1.0, 1 / 64, 128),  # evenly spaced: the elements of MXINT8
    ],
)
def test_published_numbers(form: Format, largest: float, normal: float, smallest: float, count: int) -> None:
    assert (form.largest, form.smallest_normal, form.smallest) == (largest, normal, smallest)
    numbers = form.numbers()
    assert len(numbers) == count
    assert bool((numbers.diff() > 0).all())
    assert (numbers[1], numbers[-1]) == (smallest, largest)


def pytorch_cast(v: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what PyTorch casts to; beyond the last tie of E4M3 nan, where some versions saturate (torch 2.13)."""
    found = v.to(dtype).float()
    return torch.where(v.abs() > 464, torch.nan, found) if dtype == torch.float8_e4m3fn else found


@pytest.mark.parametrize(("form", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_every_half_precision_number_is_cast_as_by_pytorch(form: Format, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for half in (torch.float16, torch.bfloat16):
        v = every.view(half).float()
        want = pytorch_cast(v, dtype)
        torch.testing.assert_close(cast(v, form, form.overflow), want, rtol=0, atol=0, equal_nan=True)
        clipped = v.clamp(-form.largest, form.largest).to(dtype).float()
        torch.testing.assert_close(cast(v, form, form.largest), clipped, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("form", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_float32_numbers_next_to_every_tie(form: Format, dtype: torch.dtype) -> None:
    numbers = form.numbers().float()
    ties = (numbers[1:] + numbers[:-1]) / 2
    up, down = (torch.nextafter(ties, torch.tensor(towards)) for towards in (torch.inf, -torch.inf))
    v = torch.cat([numbers, ties, up, down])
    v = torch.cat([v, -v])
    assert torch.equal(cast(v, form, form.overflow), pytorch_cast(v, dtype))
    assert torch.equal(cast(v.double(), form, form.overflow), pytorch_cast(v, dtype).double())


def test_float64_is_rounded_once() -> None:
    above_a_tie = torch.tensor(1.0 + 2.0**-4 + 2.0**-40, dtype=torch.float64)  # which float32 rounds to the tie
    assert cast(above_a_tie, E4M3, E4M3.overflow).item() == 1.125
    assert above_a_tie.to(torch.float8_e4m3fn).double().item() == 1.0


def test_bfloat16_is_a_format_like_others() -> None:
    form = make_format("f", 8, 7, None, "ieee", False)
    v = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-38, 38, 1000)
    v = torch.cat([v, torch.tensor([2.0**-133, 1.5 * 2.0**-133, 3.39e38, 3.4e38, torch.inf, -torch.inf, 1e-45])])
    assert torch.equal(cast(v, form, form.overflow), v.to(torch.bfloat16).float())


def test_special_values() -> None:
    v = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])
    saturated = cast(v, E4M3, E4M3.largest)
    assert saturated[:2].tolist() == [448.0, -448.0]
    assert bool(saturated[2].isnan())
    assert bool(torch.signbit(saturated[3]))
    assert bool(cast(v, E4M3, torch.nan)[:3].isnan().all())
    assert cast(v, E5M2, torch.inf)[:2].tolist() == [torch.inf, -torch.inf]


def test_binade() -> None:
    for dtype in (torch.float32, torch.float64):
        v = torch.tensor([0.0, 1.0, -1.999, 2.0, 0.75, -1e-30], dtype=dtype)
        assert torch.equal(binade(v), torch.tensor([0.0, 1.0, 1.0, 2.0, 0.5, 2.0**-100], dtype=dtype))


def test_what_is_no_format() -> None:
    with pytest.raises(OptionError, match="f: exponent_bits is 0; expected a whole number from 1 to 8"):
        make_format("f", 0, 3, None, "none", True)
    with pytest.raises(OptionError, match="f: exponent_bits is 1; expected a whole number from 2 to 8"):
        make_format("f", 1, 3, None, "ieee", True)
    with pytest.raises(OptionError, match="f: mantissa_bits is 0; expected a whole number from 1 to 23"):
        make_format("f", 4, 0, None, "none", True)
    with pytest.raises(OptionError, match="f: specials: got 'inf'; expected one of none, nan, ieee"):
        make_format("f", 4, 3, None, "inf", True)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="saturate=False with specials='none'; expected a format that has infinity"):
        make_format("f", 4, 3, None, "none", False)
    with pytest.raises(OptionError, match=r"bias=200 gives numbers from .*; expected a format that float32 holds"):
        make_format("f", 4, 3, 200, "none", True)
