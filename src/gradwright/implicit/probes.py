"""Looking at a function that is said to apply a matrix: is it linear, can autograd follow it, does it get all it uses?

That is seen at vectors of both signs and many magnitudes. A function that adds a constant, one that leaves PyTorch
(``detach``, NumPy) or one that uses a tensor of its surroundings would give a wrong gradient without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import RuleError
from gradwright.implicit.systems import System


def spread(like: Tensor, phase: float = 0.3) -> Tensor:
    """Return a vector of both signs and many magnitudes, always the same; ``vmap`` refuses random ones."""
    steps = torch.arange(like.numel(), device=like.device, dtype=like.real.dtype)
    values = torch.cos(2 * steps + phase) ** 3
    if like.is_complex():
        return torch.complex(values, torch.sin(3 * steps + phase)).reshape(like.shape)
    return values.reshape(like.shape)


def refuse_captured(
    system: System, b: Tensor, leaves: Sequence[Tensor], names: Callable[[], str]
) -> Callable[[], None] | None:
    """Refuse an operator that uses tensors without receiving them, which would get no gradient.

    ``names`` tells what they are called.

    Returns:
        what raises once the operator is another than now, None where that cannot be seen.

    Raises:
        RuleError: one requires grad, or a transform is at it.
    """
    if torch_compat.is_recording():
        return None
    constants = [torch_compat.bare_sample(leaf) for leaf in leaves]
    with torch.enable_grad(), torch_compat.forward_mode_enabled():
        value = system.apply(spread(torch_compat.bare_sample(b)), constants)
    if torch_compat.moves(value):
        raise RuleError(
            f"{system.name}: it uses a tensor that requires grad, or that a transform is at, without receiving "
            f"it{names()}, so that no gradient would arrive there; expected every such tensor among its arguments; "
            "pass it after b and let the function take it after x, give the module itself (or a method of it) in place "
            "of a function that uses it, or use `.detach()` on what is a constant."
        )
    return functools.partial(_refuse_changed, system, spread(torch_compat.bare_sample(b)), constants, value.detach())


def _refuse_changed(system: System, x: Tensor, leaves: Sequence[Tensor], value: Tensor) -> None:
    # The transforms that were around may have ended.
    x, value, *leaves = [torch_compat.bare_sample(tensor) for tensor in (x, value, *leaves)]
    with torch.no_grad():
        now = system.apply(x, leaves)
    allowed = torch.finfo(value.dtype).eps ** 0.5 * value.abs().max()
    if not bool(((now - value).abs() <= allowed).all()):
        raise RuleError(
            f"{system.name}: it gives another value now than when the system was solved, so that the derivative would "
            "be that of another problem: something that it uses and does not receive has changed since, such as a "
            "number or a buffer; expected everything that changes among the arguments; pass it after b."
        )


def require_linear(system: System, b: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Return whether an operator could be looked at.

    Raises:
        RuleError: it is not linear in its first argument, or autograd cannot follow it.
    """
    constants = [leaf.detach() for leaf in leaves]
    u, v = spread(b), spread(b, 1.1)
    with torch.no_grad():
        first, second, both = (system.apply(x, constants) for x in (u, v, u + 2 * v))
        tolerance = 1e-6 if b.real.dtype == torch.float64 else 1e-3
        size = first.abs().amax() + 2 * second.abs().amax()
        bent = (both - first - 2 * second).abs().amax() > tolerance * size
        if torch_compat.anywhere(bent):
            raise RuleError(
                f"{system.name}: it is not linear in its first argument; expected the product of a matrix with x; "
                "move terms without x to the right side; for other equations there is gw.implicit.root."
            )
        one, other = _dot(v, first), _dot(system.adjoint.apply(v, constants), u)
        parts = v.abs() * first.abs()
        differ = (one - other).abs() > 10 * tolerance * parts.sum()
        seen = torch_compat.anywhere(differ)
    if seen:
        raise RuleError(
            f"{system.name}: autograd cannot follow it: the transposed product that it gives is that of another "
            "matrix; expected PyTorch operations on x; leave out detach, no_grad, NumPy and item()."
        )
    return seen is not None


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).sum()
