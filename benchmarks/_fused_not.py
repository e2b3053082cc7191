"""Scenarios of what is not in ``gw.fused``, since it does not pay in plain PyTorch on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _fused_heads import PLAIN
from _fused_measure import Candidate, Scenario
from torch import Tensor, nn

from gradwright import custom_gradient
from gradwright.fused.route import block_rows

RATE = 0.1


@custom_gradient
def layer_norm_from_output(x: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """Normalise rows, and return the reciprocal of their deviation as well."""
    scale = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + eps)
    return (x - x.mean(-1, keepdim=True)) * scale, scale


@layer_norm_from_output.vjp
def _layer_norm_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    y, scale = out
    g = g[0]
    return {"x": (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True)) * scale}


def layer_norm(quick: bool) -> Scenario:
    rows, width, to = (16, 32, 8) if quick else (4096, 2048, 256)
    torch.manual_seed(0)

    def eager(x: Tensor, beside: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.layer_norm(x + beside, (width,)), weight)

    def from_output(x: Tensor, beside: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.linear(layer_norm_from_output(x + beside)[0], weight)

    return Scenario(
        f"sum, LayerNorm, linear, {rows} x {width} to {to}",
        (
            torch.randn(rows, width, requires_grad=True),
            torch.randn(rows, width),
            (torch.randn(to, width) / width**0.5).requires_grad_(),
        ),
        [Candidate(PLAIN, eager), Candidate("from its output, by hand", from_output)],
    )


def gate(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.silu(a) * b


@custom_gradient
def gate_by_hand(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.silu(a).mul_(b)


@gate_by_hand.vjp
def _gate_vjp(g: Tensor, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    s = torch.sigmoid(a)
    return {"a": g * b * s * (1 + a * (1 - s)), "b": g * a * s}


@custom_gradient
def gate_in_blocks(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(a)
    for rows in torch.arange(len(a)).split(block_rows(*a.shape, a.element_size(), a.device)):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        torch.mul(nn.functional.silu(a[part]), b[part], out=out[part])
    return out


@gate_in_blocks.vjp
def _gate_in_blocks_vjp(g: Tensor, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    found = torch.empty_like(a), torch.empty_like(b)
    for rows in torch.arange(len(a)).split(block_rows(*a.shape, a.element_size(), a.device)):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        s = torch.sigmoid(a[part])
        silu = a[part] * s
        torch.mul(g[part], silu, out=found[1][part])
        slope = s.add_(silu.mul_(1 - s))
        torch.mul(slope.mul_(b[part]), g[part], out=found[0][part])
    return {"a": found[0], "b": found[1]}


def swiglu(quick: bool) -> Scenario:
    size = 16 if quick else 4096
    torch.manual_seed(0)
    found = [
        Candidate(PLAIN, gate),
        Candidate("by hand", gate_by_hand),
        Candidate("by hand, in blocks", gate_in_blocks),
    ]
    args = (torch.randn(size, size, requires_grad=True), torch.randn(size, size, requires_grad=True))
    return Scenario(f"SwiGLU's gate, silu(a) b, {size} x {size}", args, found, compiled=True)


@custom_gradient
def dropout_by_mask(x: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.rand_like(x) >= RATE
    return x * mask / (1 - RATE), mask


@dropout_by_mask.vjp
def _dropout_by_mask_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {"x": g[0] * out[1] / (1 - RATE)}


@custom_gradient
def dropout_by_seed(x: Tensor, seed: int) -> Tensor:
    return x * _mask(x, seed) / (1 - RATE)


@dropout_by_seed.vjp
def _dropout_by_seed_vjp(g: Tensor, seed: int) -> dict[str, Tensor]:
    return {"x": g * _mask(g, seed) / (1 - RATE)}


def _mask(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty_like(like).uniform_(generator=generator) >= RATE


def dropout(quick: bool) -> Scenario:
    size = 16 if quick else 4096
    torch.manual_seed(0)
    return Scenario(
        f"dropout, {size} x {size}",
        (torch.randn(size, size, requires_grad=True),),
        [
            Candidate(PLAIN, lambda x: nn.functional.dropout(x, RATE)),
            Candidate("by hand, keeps a mask of one byte", lambda x: dropout_by_mask(x)[0]),
            Candidate("by hand, draws the mask again", lambda x: dropout_by_seed(x, 0)),
        ],
        random=True,
        compiled=False,
    )


NOT: dict[str, dict[str, Callable[[bool], Scenario]]] = {
    "not": {"layer-norm-from-output": layer_norm, "swiglu": swiglu, "dropout": dropout}
}
"""By table and by the name that is asked for; each takes whether it is to be small."""
