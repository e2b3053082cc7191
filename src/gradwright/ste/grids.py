"""Whole numbers for what a quantiser computes in floating point: codes, and the grid that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.errors import ArgumentError
from gradwright.ste.masks import working_dtype
from gradwright.ste.parameters import arranged


@dataclass(frozen=True, eq=False)
class Grid:
    """Evenly spaced values: ``(code - zero_point) * scale`` for every whole code from ``low`` to ``high``."""

    scale: Tensor
    zero_point: Tensor | None
    low: int
    high: int
    axis: int | None = None
    group_size: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The smallest integer dtype that holds every code."""
        for dtype in (torch.uint8, torch.int8, torch.int16):
            if torch.iinfo(dtype).min <= self.low and self.high <= torch.iinfo(dtype).max:
                return dtype
        return torch.int32

    def encode(self, values: Tensor) -> Codes:
        """Return the codes of values that lie on the grid, those of a quantiser.

        Raises:
            ArgumentError: a value is not on the grid: it is not that of a code, up to rounding.
        """
        spread, (scale, zero) = arranged("encode", values, (self.scale, self.zero_point), self.axis, self.group_size)
        assert scale is not None
        position = spread.to(working_dtype(values.dtype)) / scale + (0.0 if zero is None else zero)
        codes = torch.round(position)
        known = (codes >= self.low) & (codes <= self.high) & ((position - codes).abs() < 0.01)
        if not bool(known.all()):
            raise ArgumentError(
                f"encode: {float(spread[~known][0])} is no whole number of steps; expected values of codes from "
                f"{self.low} to {self.high}; other quantisers than evenly spaced ones have no integer codes."
            )
        return Codes(codes.to(self.dtype).reshape(values.shape), self)


@dataclass(frozen=True, eq=False)
class Codes:
    """The codes of a tensor, as integers, and the grid they stand for."""

    values: Tensor
    grid: Grid

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the values in floating point, bit for bit those of the quantiser."""
        codes = self.values.to(working_dtype(dtype))
        parameters = (self.grid.scale, self.grid.zero_point)
        codes, (scale, zero) = arranged("dequantize", codes, parameters, self.grid.axis, self.grid.group_size)
        assert scale is not None
        return ((codes if zero is None else codes - zero) * scale).to(dtype).reshape(self.values.shape)
