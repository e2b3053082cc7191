"""Roots: solutions of ``F(z, *params) = 0``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gradwright.implicit import solvers
from gradwright.implicit.calling import Settings, Solve
from gradwright.implicit.equations import Equation
from gradwright.implicit.modules import solve_of
from gradwright.implicit.natives import OnVectors
from gradwright.implicit.options import Method, SolveOptions


def root(
    residual: Callable[..., Any],
    /,
    *,
    has_aux: bool = False,
    arrays: bool = False,
    tol_residual: float | None = None,
    linear: Method | SolveOptions = "auto",
    tol: float | None = None,
    max_steps: int = 100,
) -> Solve:
    """Solve ``residual(z, *params) = 0`` for ``z``, as a differentiable function of the parameters.

    ``solve = root(residual)`` is called as ``solve(z0, *params)`` and uses Newton's method with a line search (with
    GMRES beyond 1,000 unknowns). Above another solver it is a decorator: ``@root(residual)``, then
    ``def solver(z0, *params): return z``. The solver may be anything, and is not differentiated: the gradient is that
    of the solution, by the implicit function theorem (Krantz and Parks, 2013; Blondel et al., 2022). With ``F`` for the
    residual and ``v`` for the cotangent of ``z``::

        (dF/dz)^T w = v,    gradient of the parameters = -(dF/dparams)^T w

    Forward mode, ``torch.func``, ``vmap`` and derivatives of any order follow. The initial guess gets a gradient of
    zeros. Problems that have nothing to do with each other belong under ``vmap``, which solves them at once with the
    default solver, and calls another for each: as one ``z`` with a batch dimension they would be one large system.
    torch.compile leaves its graph for the solve, and under autocast it is done in single precision.

    A solver gets detached tensors and runs with gradients off; one that uses autograd switches them on for itself. What
    it returns is copied.

    Arguments:
        residual: a function of PyTorch operations (or one made by ``gw.external``) that returns as many numbers as
            ``z`` has. Where it is an ``nn.Module`` or a method of one, its parameters get gradients too. For a module
            what is returned is a module as well, which registers it as ``residual``; for a method it is a function, as
            it is kept in the module itself (``self.solve = root(self.residual)``).
        has_aux: the result is ``(z, aux)``; a decorated solver returns such a pair, the default one gives a
            :class:`Status`. Under ``vmap`` aux is a list, with one for each sample.
        arrays: the decorated solver gets NumPy arrays for tensors, and may return arrays or numbers.
        tol_residual: how large the residual may be where the solution is differentiated, relative to what an error
            of ``1 + |z|`` in it would cause; by default 1e-4 in float64, 1e-3 in float32. The error of gradients is
            about as large as that of ``z``.
        linear: how the linear system of the gradient is solved: ``"direct"`` (the default up to 1,000 unknowns),
            ``"gmres"`` (the default beyond), a function, or ``SolveOptions(...)``, which also say what happens where
            it is ill-conditioned.
        tol: the default solver stops after a step of at most this size, relative to ``1 + |z|``; by default
            1.8e-12 in float64, 6.4e-6 in float32.
        max_steps: of the default solver.

    A solver of either kind may return what is no solution: that raises where it is differentiated.

    Raises:
        ConvergenceError: where the result is differentiated: the solver returned no solution.
        SingularMatrixError: the same: the solution has no derivative, as at a fold.
        RuleError: the residual uses a tensor that requires grad without receiving it, or has another number of
            elements.

    Example:
        >>> import torch, gradwright as gw
        >>> solve = gw.implicit.root(lambda y, t: y**3 + y - t)
        >>> t = torch.tensor(2.0, requires_grad=True)
        >>> y = solve(torch.tensor(0.5), t)
        >>> y, torch.autograd.grad(y, t)  # doctest: +ELLIPSIS
        (tensor(1., grad_fn=<...>), (tensor(0.2500),))
    """
    options = {
        "has_aux": has_aux,
        "arrays": arrays,
        "tol_residual": tol_residual,
        "linear": linear,
        "tol": tol,
        "max_steps": max_steps,
    }
    equation = Equation("root", residual)
    native = OnVectors(equation, functools.partial(solvers.newton, tol=tol, max_steps=max_steps))
    settings = Settings.of(equation, has_aux, arrays, tol_residual, linear, {"tol": tol, "max_steps": max_steps})
    return solve_of(equation, settings, native, (root, (residual,), options))
