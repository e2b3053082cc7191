"""``save``: a result together with what its derivative can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kept:
    """A result and what its derivative can use, as ``gw.save`` makes it."""

    result: Any
    residuals: Any


def save(result: Any, residuals: Any) -> Any:
    """Return a result from a foreign function together with something that its derivative uses.

    Rules ask for it as ``residuals``: a factorisation, a mesh, a handle. It is kept until the backward has run, and
    computed again where it was not kept.

    Arguments:
        result: what the function returns.
        residuals: anything.

    Example:
        >>> import numpy as np, scipy.linalg, torch, gradwright as gw
        >>> @gw.external(out=gw.like("b"))
        ... def solve(a, b):
        ...     factors = scipy.linalg.lu_factor(a)
        ...     return gw.save(scipy.linalg.lu_solve(factors, b), factors)
        >>> @solve.register_vjp
        ... def solve_vjp(g, out, residuals):
        ...     w = scipy.linalg.lu_solve(residuals, g, trans=1)
        ...     return {"a": -np.outer(w, out), "b": w}
        >>> b = torch.tensor([2.0, 6.0], dtype=torch.float64, requires_grad=True)
        >>> torch.autograd.grad(solve(torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64)), b).sum(), b)
        (tensor([1.0000, 0.5000], dtype=torch.float64),)
    """
    return Kept(result, residuals)
