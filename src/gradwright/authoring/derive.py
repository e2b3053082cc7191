"""Rules derived from rules: forward mode from a VJP and the other way round, by transposition.

Both a VJP and a JVP are linear maps, and each is the transpose of the other (Radul et al., *You only linearize once*,
2022). PyTorch transposes a linear map when asked for its VJP, at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwright.errors import RuleError

Meta: TypeAlias = tuple[torch.Size, torch.dtype, torch.device]
"""Shape, dtype and device of a tensor."""


LinearMap: TypeAlias = Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]


def meta_of(x: Tensor) -> Meta:
    """Return shape, dtype and device of a tensor."""
    return x.shape, x.dtype, x.device


def zeros(meta: Meta) -> Tensor:
    """Return a tensor of zeros."""
    shape, dtype, device = meta
    return torch.zeros(shape, dtype=dtype, device=device)


def differentiable(meta: Meta) -> bool:
    """Tell whether a tensor of this dtype can have a derivative."""
    return bool(meta[1].is_floating_point or meta[1].is_complex)


def smooth(tensor: Tensor) -> bool:
    """Tell whether a tensor can have a derivative."""
    return tensor.is_floating_point() or tensor.is_complex()


def transpose(
    linear: LinearMap, metas: Sequence[Meta], values: Sequence[Tensor | None], *, verify: bool
) -> tuple[list[Tensor | None], bool]:
    """Apply the transpose of ``linear`` to ``values``.

    ``linear`` takes one tensor for each of ``metas`` (None where it cannot be differentiated) and returns a sequence,
    where None means zero. With ``verify`` the map is shown to be linear where its values can be looked at.

    Returns:
        one tensor for each of ``metas``, None for zero; and whether the map was seen to be linear.

    Raises:
        NotLinearError: the map turned out not to be linear.
    """
    places = [i for i, meta in enumerate(metas) if differentiable(meta)]
    kept: list[int] = []

    def restricted(*given: Tensor) -> tuple[Tensor, ...]:
        full: list[Tensor | None] = [None] * len(metas)
        for place, tensor in zip(places, given):
            full[place] = tensor
        results = linear(full)
        kept[:] = [i for i, result in enumerate(results) if result is not None and values[i] is not None]
        return tuple(results[i] for i in kept)  # type: ignore[misc]  # None was left out

    def transposed(at: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor | float, Tensor | float]:
        """Return the transpose at a point, the product of ``values`` with the map there, and the size of its terms."""
        outputs, pull = torch.func.vjp(restricted, *at)[:2]
        if not outputs:
            return tuple(torch.zeros_like(tensor) for tensor in at), 0.0, 0.0
        given = tuple(_like(values[i], output) for i, output in zip(kept, outputs))
        return tuple(pull(given)), *_product(given, outputs)

    found, _, _ = transposed([zeros(metas[i]) for i in places])
    seen = False
    if verify:
        # At a point and opposite to it, since a rule may look at signs. A map that autograd cannot follow, through
        # `detach` or whole numbers, has the derivative 0 everywhere; its values tell.
        for sign in (1, -1):
            at = [sign * _elsewhere(metas[i]) for i in places]
            again, product, size = transposed(at)
            seen = _is_linear(found, again) and _same_product((product, size), _product(found, at))
    full: list[Tensor | None] = [None] * len(metas)
    for place, tensor in zip(places, found):
        full[place] = tensor
    return full, seen


class NotLinearError(RuleError):
    """A rule that is not linear in its cotangent or tangent is no derivative, and has no transpose."""


def _like(value: Tensor | None, output: Tensor) -> Tensor:
    assert value is not None
    return value if value.dtype == output.dtype else value.to(output.dtype)


def _elsewhere(meta: Meta) -> Tensor:
    """Return values of both signs and many magnitudes: the transpose of a linear map is the same at every point."""
    shape, dtype, device = meta
    steps = torch.arange(shape.numel(), device=device, dtype=torch.float32)
    return (100 * torch.cos(2 * steps + 0.3) ** 3).to(dtype).reshape(shape)


def _product(one: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[Tensor | float, Tensor | float]:
    """Return the real inner product of two lists of tensors, and the sum of the sizes of its terms."""
    with torch.no_grad():
        terms = [(a.conj() * b).real if a.is_complex() or b.is_complex() else a * b for a, b in zip(one, other)]
        terms = [t.float() if t.dtype.itemsize < 4 else t for t in terms]
        return sum(t.sum() for t in terms), sum(t.abs().sum() for t in terms)


def _same_product(one: tuple[Tensor | float, Tensor | float], other: tuple[Tensor | float, Tensor | float]) -> bool:
    """Tell whether two products were seen to be the same; raise if they are not.

    Zeros show nothing, nor do numbers below the normal ones, which are rounded as a map that is not linear.
    """
    size = one[1] + other[1]
    if not isinstance(size, Tensor):
        return False
    tolerance = 1e-6 if size.dtype == torch.float64 else 5e-2
    allowed = tolerance * size
    large = allowed > torch.finfo(size.dtype).smallest_normal
    differ = large & (torch.as_tensor(one[0] - other[0]).abs() > allowed)
    try:
        differs, shown = (bool(torch.func.debug_unwrap(t, recurse=True).any()) for t in (differ, large))
    except (RuntimeError, NotImplementedError):
        return False  # tensors without values
    if differs:
        raise NotLinearError("not followed")
    return shown


def _is_linear(found: Sequence[Tensor], again: Sequence[Tensor]) -> bool:
    """Tell whether two transposes, taken at different points, were seen to be the same; raise if they are not."""
    for one, other in zip(found, again):
        try:
            differ = _differ(one, other)
        except (RuntimeError, NotImplementedError):
            return False  # no values to look at: on the meta device, a fake tensor, one in an old-style vmap
        if differ:
            raise NotLinearError("not linear")
    return True


def _differ(one: Tensor, other: Tensor) -> bool:
    # Inside a transform a value cannot be asked for; what it stands for can.
    a, b = (torch.func.debug_unwrap(tensor, recurse=True) for tensor in (one, other))
    scale = a.abs().amax() if a.numel() else 0.0
    tolerance = 1e-3 if a.dtype.itemsize <= 4 else 1e-6
    return bool(((a - b).abs() > tolerance * (scale + b.abs()) + 1e-30).any())
