"""Selection by a mask, as families use it: what is not selected is dropped, never multiplied by zero.

``torch.where`` does that, but its kernel for CPUs branches on each element of the mask, and guesses wrong half the time
where the mask is random: it takes twenty times as long as adding. Here bits are combined instead, in vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.decorator import custom_gradient

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
"""Integers as wide as the numbers of a dtype."""


def keep(x: Tensor, mask: Tensor) -> Tensor:
    """Return ``x`` where the mask is true and zero elsewhere, also where ``x`` is nan or infinite.

    Arguments:
        x: of the shape of the result.
        mask: booleans, broadcast to ``x``.
    """
    if _by_bits(x):
        return kept_bits(x, mask)
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def pick(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return ``a`` where the mask is true and ``b`` elsewhere.

    Arguments:
        mask: booleans, broadcast to ``a``.
        a: of the shape of the result.
        b: of the dtype of ``a``; of its shape, or broadcast to it if it needs no gradient.
    """
    return picked_bits(mask, a, b) if _by_bits(a) and _by_bits(b) else torch.where(mask, a, b)


@custom_gradient
def kept_bits(x: Tensor, mask: Tensor) -> Tensor:
    """Return what :func:`keep` does."""
    return _bits(x).bitwise_and(_ones(mask)).view(x.dtype)


@kept_bits.vjp
def kept_bits_vjp(g: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {"x": keep(g, mask)}


@kept_bits.jvp
def kept_bits_jvp(t: dict[str, Tensor], mask: Tensor) -> Tensor:
    return keep(t["x"], mask)


@custom_gradient
def picked_bits(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return what :func:`pick` does."""
    bits = _bits(a)
    out = bits.bitwise_xor(_bits(b))  # where they differ; then, only where `b` is wanted; then, `a` or `b`
    return out.bitwise_and_(_ones(~mask)).bitwise_xor_(bits).view(a.dtype)


@picked_bits.vjp
def picked_bits_vjp(g: Tensor, mask: Tensor, needs: dict[str, bool]) -> dict[str, Tensor | None]:
    return {"a": keep(g, mask) if needs["a"] else None, "b": keep(g, ~mask) if needs["b"] else None}


@picked_bits.jvp
def picked_bits_jvp(t: dict[str, Tensor | None], mask: Tensor) -> Tensor:
    a, b = t["a"], t["b"]
    if a is not None and b is not None:
        return pick(mask, a, b)
    if a is not None:
        return keep(a, mask)
    assert b is not None
    return keep(b, ~mask)


def _by_bits(x: Tensor) -> bool:
    """Tell whether bits are combined. Elsewhere the kernel of ``where`` does not branch, or is made by a compiler."""
    known = type(x) in (Tensor, torch.nn.Parameter) and x.dtype in _BITS and x.device.type == "cpu"
    return (
        known and not torch_compat.may_be_batched(x) and not torch_compat.is_recording() and torch_compat.has_memory(x)
    )


def _bits(x: Tensor) -> Tensor:
    return x.resolve_neg().view(_BITS[x.dtype])


def _ones(mask: Tensor) -> Tensor:
    """Return -1 where the mask is true, of which all bits are ones however wide it becomes, and 0 elsewhere."""
    return mask.view(torch.int8).neg()
