"""Rotations at the places where a formula can be wrong, for the examples of the entries about them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.authoring.catalogue import around
from gradwright.authoring.exact import HALF, Point, relative

AXIS = (2.0 / 3, -1.0 / 3, 2.0 / 3)
NEAREST = "the nearest rotation is found first; what it replaces has another gradient for each way to write it"
"""Why reading a matrix is slower than what is written today."""
BARS = relative(1e-13, 1e-6, *HALF)


def turns(*angles: float, dtype: torch.dtype) -> Tensor:
    """Return rotation vectors with these angles about one axis."""
    return torch.tensor(angles, dtype=torch.float64)[:, None].mul(torch.tensor(AXIS, dtype=torch.float64)).to(dtype)


def quaternions(*angles: float, dtype: torch.dtype, length: float = 1.0) -> Tensor:
    """Return quaternions of these angles about one axis."""
    half = torch.tensor(angles, dtype=torch.float64)[:, None] / 2
    axis = torch.tensor(AXIS, dtype=torch.float64)
    return torch.cat([half.cos(), half.sin() * axis], -1).mul(length).to(dtype)


def matrices(*angles: float, dtype: torch.dtype) -> Tensor:
    """Return rotation matrices of these angles about one axis."""
    x, y, z = AXIS
    k = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    angle = torch.tensor(angles, dtype=torch.float64)[:, None, None]
    return (torch.eye(3, dtype=torch.float64) + angle.sin() * k + 2 * (angle / 2).sin() ** 2 * (k @ k)).to(dtype)


def vector_examples(dtype: torch.dtype) -> Sequence[Point]:
    """Return rotation vectors."""
    half_turn, switch = around(math.pi, dtype=dtype), around(1.0, dtype=dtype)
    zero = torch.zeros_like(switch)
    return [
        Point((turns(0.3, 1.1, 2.2, dtype=dtype),), note="ordinary"),
        Point((torch.zeros(3, dtype=dtype),), note="identity"),
        Point((turns(torch.finfo(dtype).tiny, dtype=dtype),), note="the smallest numbers", extreme=True),
        Point((turns(1e-9, 1e-3, dtype=dtype),), note="small"),
        Point((torch.stack([zero, switch, zero], -1),), note="where series and closed form meet"),
        Point((torch.stack([zero, half_turn, zero], -1),), note="half a turn"),
        Point((turns(6.28, 8.0, dtype=dtype),), note="more than one turn"),
    ]


def matrix_examples(dtype: torch.dtype) -> Sequence[Point]:
    """Return rotation matrices, and matrices that are none."""
    off = torch.tensor([[0.1, -0.05, 0.02], [0.07, 0.2, -0.1], [-0.03, 0.04, -0.2]], dtype=torch.float64)
    none = torch.stack([matrices(2.0, dtype=torch.float64)[0] + off, 3.0 * matrices(0.4, dtype=torch.float64)[0]])
    tiny = torch.finfo(dtype).tiny
    almost = torch.tensor([[1.0, -tiny, 0.0], [tiny, 1.0, -tiny], [0.0, tiny, 1.0]], dtype=dtype)
    return [
        Point((matrices(0.3, 2.2, dtype=dtype),), note="ordinary"),
        Point((torch.eye(3, dtype=dtype),), note="identity"),
        Point((almost,), note="the smallest numbers", extreme=True),
        Point((matrices(1e-3, dtype=dtype),), note="small"),
        Point((matrices(3.1, dtype=dtype),), note="near half a turn"),
        Point((torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=dtype)),), note="half a turn", orders=0, extreme=True),
        Point((none.to(dtype),), note="not rotations"),
    ]
