"""Fixed points: solutions of ``z = f(z, *params)``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradwright.errors import OptionError, unknown_choice
from gradwright.implicit import solvers
from gradwright.implicit.calling import Settings, Solve
from gradwright.implicit.equations import FixedPoint
from gradwright.implicit.modules import solve_of
from gradwright.implicit.natives import OnVectors
from gradwright.implicit.options import Method, SolveOptions
from gradwright.implicit.plan import Backward


def fixed_point(
    f: Callable[..., Any],
    /,
    *,
    has_aux: bool = False,
    arrays: bool = False,
    tol_residual: float | None = None,
    linear: Method | SolveOptions = "auto",
    backward: Backward = "exact",
    steps: int = 10,
    tol: float | None = None,
    max_steps: int = 1000,
    memory: int = 5,
) -> Solve:
    """Find ``z = f(z, *params)``, as a differentiable function of the parameters.

    It is called, and decorates other solvers, as :func:`root` does. By default ``f`` is iterated with Anderson's
    mixing.
    For the cotangent ``v`` of ``z``::

        (I - df/dz)^T w = v,    gradient of the parameters = (df/dparams)^T w

    (Christianson, 1994; Bai et al., 2019). The system is solved and not iterated, so that the gradient is right also
    where iterating ``f`` would not converge.

    Arguments:
        f: a function of PyTorch operations that returns tensors like ``z``; of a module the parameters get gradients,
            and what is returned is a module, which registers it as ``function``.
        has_aux, arrays, tol_residual, linear, tol, max_steps: as for :func:`root`.
        backward: ``"exact"``, or one of two surrogates, which are cheaper and not the derivative: ``"one-step"`` uses
            ``w = v``, the derivative of ``f(z, *params)`` with ``z`` as a constant (Fung et al., 2022; Bolte et al.,
            2023), whose error is as large as the contraction of ``f``; ``"neumann"`` uses the first terms of the series
            ``w = v + (df/dz)^T v + ...``, the derivative of ``steps + 1`` iterations from ``z`` as a constant, whose
            error is as large as the contraction to that power. Second derivatives of a surrogate raise.
        steps: terms of the series besides the first, for ``"neumann"``.
        memory: how many steps are mixed; 0 is plain iteration.

    Example:
        >>> import torch, gradwright as gw
        >>> solve = gw.implicit.fixed_point(lambda z, t: torch.tanh(z / 2 + t))
        >>> t = torch.tensor(0.3, dtype=torch.float64)
        >>> z, slope = solve(torch.zeros_like(t), t), torch.func.grad(lambda t: solve(torch.zeros_like(t), t))(t)
        >>> torch.allclose(slope, (1 - z**2) / (1 - (1 - z**2) / 2))
        True
    """
    if backward not in ("exact", "neumann", "one-step"):
        raise unknown_choice("fixed_point: backward", backward, ("exact", "neumann", "one-step"))
    own = {"tol": tol, "max_steps": max_steps, "memory": memory}
    options = {
        "has_aux": has_aux,
        "arrays": arrays,
        "tol_residual": tol_residual,
        "linear": linear,
        "backward": backward,
        "steps": steps,
        **own,
    }
    equation = FixedPoint("fixed_point", f)
    for option, value, lowest in (("steps", steps, 1), ("memory", memory, 0)):
        if value < lowest:
            raise OptionError(f"{equation.name}: {option} is {value!r}; expected a whole number from {lowest} on.")
    solver = functools.partial(solvers.anderson, tol=tol, max_steps=max_steps, memory=memory)
    settings = Settings.of(equation, has_aux, arrays, tol_residual, linear, {"tol": tol, "max_steps": max_steps})
    settings = replace(settings, backward=backward, steps=steps if backward == "neumann" else 0)
    return solve_of(equation, settings, OnVectors(equation, solver), (fixed_point, (f,), options))
