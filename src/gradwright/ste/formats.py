"""Small floating-point formats: which numbers they hold, and rounding to them.

A format has a sign, ``E`` exponent bits, ``M`` mantissa bits and a bias. With the exponent field ``e`` and the mantissa
field ``m`` its numbers are ``2 ** (e - bias) * (1 + m / 2 ** M)``, and ``2 ** (1 - bias) * m / 2 ** M`` for ``e = 0``
(subnormal). The highest codes may stand for infinity and nan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from gradwright.errors import OptionError, unknown_choice
from gradwright.ste.parameters import whole

Specials: TypeAlias = Literal["none", "nan", "ieee"]
"""``none``: every code is a number (OCP FP6, FP4); ``nan``: the highest code of each sign is nan (E4M3); ``ieee``: the
highest exponent holds infinity and nan (E5M2)."""

SPECIALS: tuple[Specials, ...] = ("none", "nan", "ieee")


@dataclass(frozen=True)
class Format:
    """A floating-point format whose numbers are numbers of float32."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials = "none"

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all mantissa bits; below it numbers are evenly spaced."""
        return float(2.0 ** (1 - self.bias))

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return float(2.0 ** (1 - self.bias - self.mantissa_bits))

    @property
    def top_binade(self) -> float:
        """The power of two of the largest number."""
        lost = 1 if self.specials == "ieee" else 0
        return float(2.0 ** (2**self.exponent_bits - 1 - lost - self.bias))

    @property
    def largest(self) -> float:
        """The largest finite number."""
        lost = 2 if self.specials == "nan" else 1
        return self.top_binade * (2 - lost * 2.0**-self.mantissa_bits)

    @property
    def overflow(self) -> float:
        """What a cast that does not saturate returns beyond the largest number."""
        return {"none": self.largest, "nan": torch.nan, "ieee": torch.inf}[self.specials]

    def numbers(self) -> Tensor:
        """Return the finite numbers from zero up, each at the place that its code without sign says, in float64."""
        found = []
        for exponent in range(2**self.exponent_bits):
            for mantissa in range(2**self.mantissa_bits):
                lead, power = (0, 1) if exponent == 0 else (1, exponent)
                found.append((lead + mantissa * 2.0**-self.mantissa_bits) * 2.0 ** (power - self.bias))
        return torch.tensor([number for number in found if number <= self.largest], dtype=torch.float64)


def make_format(
    function: str, exponent_bits: int, mantissa_bits: int, bias: int | None, specials: Specials, saturate: bool
) -> Format:
    """Return a format; a bias of None is the usual one, ``2 ** (exponent_bits - 1) - 1``.

    Raises:
        OptionError: there is no such format, or float32 does not hold its numbers.
    """
    if specials not in SPECIALS:
        raise unknown_choice(f"{function}: specials", specials, SPECIALS)
    least = 2 if specials == "ieee" else 1
    if not whole(exponent_bits, least, 8):
        raise OptionError(f"{function}: exponent_bits is {exponent_bits!r}; expected a whole number from {least} to 8.")
    if not whole(mantissa_bits, 1, 23):
        raise OptionError(f"{function}: mantissa_bits is {mantissa_bits!r}; expected a whole number from 1 to 23.")
    if not saturate and specials == "none":
        raise OptionError(
            f"{function}: saturate=False with specials='none'; expected a format that has infinity or nan; "
            "write specials='ieee' or 'nan'."
        )
    found = Format(exponent_bits, mantissa_bits, 2 ** (exponent_bits - 1) - 1 if bias is None else bias, specials)
    held = torch.finfo(torch.float32)
    if found.largest > held.max or found.smallest < held.smallest_normal * held.eps:
        raise OptionError(
            f"{function}: bias={found.bias} gives numbers from {found.smallest:g} to {found.largest:g}, not all "
            "of them numbers of float32; expected a format that float32 holds; write another bias or specials='ieee'."
        )
    return found


def rounded(
    v: Tensor, mantissa_bits: int, smallest_normal: float, top_binade: float, largest: float, overflow: float
) -> Tensor:
    """Return the nearest numbers of a format, ties to the even code; exact for float32 and float64.

    Steps are powers of two, so that neither the division nor the product is rounded.
    """
    step = binade(v).clamp(smallest_normal, top_binade) * 2.0**-mantissa_bits
    found = torch.round(v / step) * step
    if overflow == largest:
        return found.clamp(-largest, largest)
    return torch.where(found.abs() > largest, torch.copysign(torch.full_like(found, overflow), found), found)


def binade(v: Tensor) -> Tensor:
    """Return the power of two at or below the size of each number, zero where that is subnormal in its own dtype."""
    bits, exponent = (torch.int64, 0x7FF0000000000000) if v.dtype == torch.float64 else (torch.int32, 0x7F800000)
    return (v.view(bits) & exponent).view(v.dtype)
